//! Queries of URLs.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use serde::de::DeserializeOwned;

use super::error::ApiError;

/// As axum's, but one that does not fit is told in the form of all other errors.
#[derive(Debug)]
pub struct Query<T>(pub T);

impl<T: DeserializeOwned, S: Sync> FromRequestParts<S> for Query<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let read = axum::extract::Query::try_from_uri(&parts.uri);
        let axum::extract::Query(query) = read.map_err(|error| ApiError::bad(error.body_text()))?;
        Ok(Self(query))
    }
}

#[cfg(test)]
mod tests {
    use axum::http::Request;
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    struct Fields {
        version: u64,
    }

    async fn read(query: &str) -> Result<u64, ApiError> {
        let (mut parts, ()) = Request::get(format!("/?{query}")).body(()).unwrap().into_parts();
        let Query(Fields { version }) = Query::from_request_parts(&mut parts, &()).await?;
        Ok(version)
    }

    #[tokio::test]
    async fn a_query_that_does_not_fit_is_a_bad_request_in_words() {
        assert_eq!(read("version=3").await.unwrap(), 3);
        for (wrong, words) in [
            ("", "version"),
            ("version=x", "version"),
            ("version=1&version=2", "version"),
        ] {
            let error = read(wrong).await.unwrap_err();
            assert_eq!(error.status, 400);
            assert!(error.message.contains(words), "{error}");
        }
    }
}
