//! The paths of the reference server, and the function that answers each.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::routing::post;
use axum::{Json, Router, middleware};

use super::pod::SHORTER;
use super::protocol::{LogprobsRequest, LogprobsResponse, PATH};
use super::scorer::{Scorer, ScorerError};
use crate::serving::auth::{Door, authorize};
use crate::serving::body::{self, Bodies, Object};
use crate::serving::error::ApiError;
use crate::serving::fallback::in_words;
use crate::serving::limits::Limits;
use crate::telemetry::{self, Exposition};

/// What every request sees. It starts without a model, so that probes are answered while one loads.
#[derive(Clone)]
pub struct Service(Arc<Shared>);

struct Shared {
    door: Door,
    bodies: Bodies,
    timeout: Duration,
    exposition: Arc<Exposition>,
    scorer: OnceLock<Scorer>,
}

impl Service {
    /// A service of the job `name`, without a model.
    ///
    /// # Errors
    /// When a metric's name is not one Prometheus takes.
    pub fn new(name: &str, token: &str, limits: &Limits) -> anyhow::Result<Self> {
        Ok(Self(Arc::new(Shared {
            door: Door::new(Some(token), false),
            bodies: Bodies::new(limits.clone()),
            timeout: limits.request_timeout,
            exposition: Arc::new(Exposition::new(name)?),
            scorer: OnceLock::new(),
        })))
    }

    /// Answers from now on. A second model is not taken.
    pub fn ready(&self, scorer: Scorer) {
        if self.0.scorer.set(scorer).is_err() {
            tracing::error!("a model is served already; the second is not taken");
        }
    }

    fn scorer(&self) -> Result<&Scorer, ApiError> {
        let scorer = self.0.scorer.get();
        scorer.ok_or_else(|| ApiError::unavailable("the model is still loading"))
    }
}

/// The role's own port.
pub fn api(service: &Service) -> Router {
    let routes = Router::new()
        .route(PATH, post(logprobs))
        .with_state(service.clone())
        .merge(probes(service));
    in_words(routes).layer(middleware::from_fn_with_state(service.0.door.clone(), authorize))
}

/// What kubelet and Prometheus ask, on a port of its own without a token.
pub fn observed(service: &Service) -> Router {
    in_words(probes(service))
}

fn probes(service: &Service) -> Router {
    let shown = service.clone();
    telemetry::probes(service.0.exposition.clone(), move || shown.scorer().map(drop))
}

async fn logprobs(State(service): State<Service>, request: Request) -> Result<Json<LogprobsResponse>, ApiError> {
    let scorer = service.scorer()?;
    let Object(asked): Object<LogprobsRequest> = body::json(&service.0.bodies, request).await?;
    let limit = service.0.timeout;
    let answer = tokio::time::timeout(limit, scorer.ask(asked)).await;
    let late = |_| {
        let words = format!(
            "not computed within {} s, others before it included: {SHORTER}, or give the reference more cores or GPUs",
            limit.as_secs()
        );
        ApiError::new(StatusCode::GATEWAY_TIMEOUT, words)
    };
    answer.map_err(late)?.map(Json).map_err(|error| match error {
        ScorerError::Refused(why) => ApiError::bad(why),
        ScorerError::Full => ApiError::new(StatusCode::TOO_MANY_REQUESTS, error.to_string()),
        ScorerError::Failed(_) => {
            tracing::error!("{error}");
            ApiError::internal(error)
        }
    })
}

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use tokio::net::TcpListener;

    use super::*;

    /// Serves on this machine; the URL without a path.
    async fn listen(router: Router) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(axum::serve(listener, router).into_future());
        url
    }

    async fn get(url: &str, token: Option<&str>) -> reqwest::Response {
        let request = crate::http_client::builder().build().unwrap().get(url);
        let request = token
            .into_iter()
            .fold(request, |request, token| request.bearer_auth(token));
        request.send().await.unwrap()
    }

    #[tokio::test]
    async fn its_own_port_shows_metrics_to_those_with_the_token_and_the_port_for_scrapers_to_all() {
        let service = Service::new("test", "secret", &Limits::default()).unwrap();
        let (own, scraped) = (listen(api(&service)).await, listen(observed(&service)).await);
        let metrics = async |url: &str, token| get(&format!("{url}/metrics"), token).await.status().as_u16();
        assert_eq!(metrics(&own, None).await, 401);
        assert_eq!(metrics(&own, Some("secret")).await, 200);
        assert_eq!(metrics(&scraped, None).await, 200);
    }

    #[tokio::test]
    async fn a_path_or_method_that_it_has_not_is_told_in_words() {
        let service = Service::new("test", "secret", &Limits::default()).unwrap();
        let url = listen(api(&service)).await;
        for (path, status) in [("/v1/logprob", 404), (PATH, 405)] {
            let answer = get(&format!("{url}{path}"), Some("secret")).await;
            assert_eq!(answer.status().as_u16(), status);
            let said: Value = answer.json().await.unwrap();
            assert!(said["error"]["message"].as_str().unwrap().contains(path), "{said}");
        }
    }
}
