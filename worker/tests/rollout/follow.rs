//! An engine that nobody tells anything comes to the actor's published weights by itself.

use ppo_crds::spec::Role;
use ppo_worker::model::{ModelConfig, Weights};
use ppo_worker::pods::{Caller, Members};
use ppo_worker::roles::{Publication, published};
use ppo_worker::rollout::actor::Actor;
use ppo_worker::serving::{Limits, listen};
use serde_json::json;
use tch::Kind;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::support::{Server, Wanted, long, make_model};

const TOKEN: &str = "the-jobs-token";

/// Serves what is published; the address, and what keeps it up.
async fn actor(publication: &Publication) -> (String, watch::Sender<bool>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let router = published::router(publication.clone(), TOKEN);
    let (stop, stopped) = watch::channel(false);
    tokio::spawn(async move { listen::serve(listener, router, &Limits::default(), stopped).await });
    (address, stop)
}

fn follower(address: &str, token: &str) -> Actor {
    let members = Members::of("job", Role::Actor, 1, address).unwrap();
    Actor::new(members, Caller::new(token.to_owned()).unwrap())
}

fn weights(seed: u64) -> Weights {
    let folder = tempfile::tempdir().unwrap();
    make_model(folder.path(), seed);
    let config = ModelConfig::read(folder.path()).unwrap();
    Weights::load(folder.path(), &config, Kind::Float).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_fetches_what_is_published_when_it_starts_and_when_nobody_brings_it() {
    let publication = Publication::default();
    let (address, _up) = actor(&publication).await;
    publication.publish(weights(1), 13);
    let server = Server::start_with(Wanted {
        actor: Some(follower(&address, TOKEN)),
        ..Wanted::default()
    })
    .await;
    let has = async |version: &str| server.get_json("/weight_info").await["weight_version"] == version;
    server
        .until("the version that was there first", async || has("13").await)
        .await;
    let fresh = Server::start_with(Wanted {
        seed: 1,
        ..Wanted::default()
    })
    .await;
    let (drawn, wanted) = (
        server.ok("/v1/completions", long(50)).await,
        fresh.ok("/v1/completions", long(50)).await,
    );
    assert_eq!(drawn["choices"], wanted["choices"]);

    publication.withdraw();
    publication.publish(weights(2), 14);
    server.until("the next version", async || has("14").await).await;
    // An actor that goes on from a checkpoint has an older version again.
    publication.withdraw();
    publication.publish(weights(1), 13);
    server.until("the version before", async || has("13").await).await;
    assert_eq!(
        server.ok("/v1/completions", long(50)).await["choices"],
        wanted["choices"]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_starts_with_weights_of_the_published_number_fetches_them_all_the_same() {
    let publication = Publication::new(2);
    let (address, _up) = actor(&publication).await;
    publication.publish(weights(1), 0);
    let server = Server::start_with(Wanted {
        actor: Some(follower(&address, TOKEN)),
        ..Wanted::default()
    })
    .await;
    let has = async |attempt: u32| server.get_json("/weight_info").await["attempt"] == attempt;
    server.until("the actor's own version 0", async || has(2).await).await;
    let fresh = Server::start_with(Wanted {
        seed: 1,
        ..Wanted::default()
    })
    .await;
    assert_eq!(
        server.ok("/v1/completions", long(50)).await["choices"],
        fresh.ok("/v1/completions", long(50)).await["choices"]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn published_weights_need_the_token_and_are_unavailable_while_they_change() {
    let publication = Publication::default();
    let (address, _up) = actor(&publication).await;
    publication.publish(weights(1), 13);
    let client = ppo_worker::http_client::builder().build().unwrap();
    let status = async |path: &str, token: &str| {
        let call = client.get(format!("http://{address}{path}")).bearer_auth(token);
        call.send().await.unwrap().status().as_u16()
    };
    for path in ["/weight_info", "/weights?version=13"] {
        assert_eq!(
            (status(path, "guess").await, status(path, TOKEN).await),
            (401, 200),
            "{path}"
        );
    }
    assert_eq!(status("/weights?version=12", TOKEN).await, 503);
    assert_eq!(status("/weights?version=13&attempt=7", TOKEN).await, 409);
    assert_eq!(status("/weights?version=x", TOKEN).await, 400);
    publication.withdraw();
    for path in ["/weight_info", "/weights?version=13"] {
        assert_eq!(status(path, TOKEN).await, 503, "{path}");
    }
    let error = follower(&address, TOKEN).policy().await.unwrap_err();
    let told = json!([error.role, error.pod, error.may_pass]);
    assert_eq!(told, json!(["actor", address, true]));
    assert!(error.to_string().contains("the weights are changing"), "{error}");
}
