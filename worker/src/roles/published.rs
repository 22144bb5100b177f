//! Where the actor's pod hands out its weights. An engine that starts, comes late or was not reached fetches them from there.

use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router, middleware};
use serde::Deserialize;

use super::publication::Publication;
use crate::rollout::actor::{INFO, WEIGHTS};
use crate::rollout::weights::LoadedWeights;
use crate::serving::auth::{Door, authorize};
use crate::serving::error::ApiError;
use crate::serving::query::Query;

/// Query of [`WEIGHTS`].
#[derive(Debug, Deserialize)]
pub struct WeightsQuery {
    /// The version that [`INFO`] told.
    pub version: u64,
    /// The attempt that it told.
    pub attempt: Option<u32>,
}

/// Answers with `token` only.
pub fn router(publication: Publication, token: &str) -> Router {
    let door = Door::new(Some(token), false);
    Router::new()
        .route(INFO, get(info))
        .route(WEIGHTS, get(weights))
        .layer(middleware::from_fn_with_state(door, authorize))
        .with_state(publication)
}

async fn info(State(publication): State<Publication>) -> Result<Json<LoadedWeights>, ApiError> {
    let version = publication.version().ok_or_else(changing)?;
    Ok(Json(LoadedWeights::of(publication.policy(version))))
}

async fn weights(
    State(publication): State<Publication>,
    Query(query): Query<WeightsQuery>,
) -> Result<Response, ApiError> {
    let own = publication.policy(query.version).attempt;
    if query.attempt.is_some() && query.attempt != own {
        let words = "these weights are of another attempt of the actor: ask again which it has";
        return Err(ApiError::new(StatusCode::CONFLICT, words));
    }
    let stream = publication.stream(query.version);
    let stream = stream.map_err(|error| ApiError::internal(format!("{error:#}")))?;
    let stream = stream.ok_or_else(changing)?;
    Ok(([(CONTENT_TYPE, "application/octet-stream")], Body::from_stream(stream)).into_response())
}

fn changing() -> ApiError {
    ApiError::unavailable("the weights are changing: ask again when the next version is published")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pods::{Caller, Member, Members};
    use crate::rollout::actor::Actor;
    use crate::rollout::weights::attempt::PolicyVersion;

    #[tokio::test]
    async fn an_actor_that_refuses_its_weights_is_told_with_its_own_words() {
        let member = Member::serving("math-actor-0", router(Publication::new(2), "token")).await;
        let actor = Actor::new(Members::Fixed(vec![member]), Caller::new("token".into()).unwrap());
        let policy = PolicyVersion {
            attempt: Some(1),
            version: 3,
        };
        let Err(refused) = actor.weights(policy).await else {
            panic!("weights of another attempt were given");
        };
        let words = refused.to_string();
        assert!(
            words.starts_with("actor math-actor-0 (") && words.contains("weights are of another attempt"),
            "{words}"
        );
    }
}
