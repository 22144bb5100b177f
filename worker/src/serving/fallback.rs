//! What a server says of a path or a method that it has not: a status alone would leave whoever wrote the address to guess.

use axum::Router;
use axum::http::{Method, StatusCode, Uri};

use super::error::ApiError;

/// `router`, and words for what it has not. It has no fallback of its own.
pub fn in_words(router: Router) -> Router {
    router.fallback(nothing_here).method_not_allowed_fallback(wrong_method)
}

/// There is no such path.
pub async fn nothing_here(uri: Uri) -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, format!("there is nothing at {}", uri.path()))
}

/// There is such a path for another method.
pub async fn wrong_method(method: Method, uri: Uri) -> ApiError {
    ApiError::new(
        StatusCode::METHOD_NOT_ALLOWED,
        format!(
            "{method} is not for {}: reading is GET, asking for something is POST",
            uri.path()
        ),
    )
}
