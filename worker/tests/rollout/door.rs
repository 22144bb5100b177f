//! Who may call what.

use serde_json::json;

use crate::support::{Server, Wanted, long};

const PATHS: [(&str, &str); 15] = [
    ("POST", "/v1/completions"),
    ("POST", "/v1/chat/completions"),
    ("GET", "/v1/models"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("GET", "/version"),
    ("POST", "/pause?mode=abort"),
    ("POST", "/resume"),
    ("GET", "/is_paused"),
    ("POST", "/abort_requests"),
    ("POST", "/update_weights"),
    ("GET", "/weight_info"),
    ("GET", "/readyz"),
    ("GET", "/metrics"),
    ("GET", "/no/such/path"),
];

#[tokio::test(flavor = "multi_thread")]
async fn every_path_but_the_probes_wants_the_token() {
    let server = Server::start_with(Wanted {
        token: Some("right"),
        ..Wanted::default()
    })
    .await;
    for (method, path) in PATHS {
        for token in [
            None,
            Some("Bearer wrong"),
            Some("Bearer right2"),
            Some("Bearer"),
            Some("Basic right"),
            Some("right"),
        ] {
            let request = server
                .client
                .request(method.parse().unwrap(), format!("{}{path}", server.url));
            let request = token
                .into_iter()
                .fold(request, |request, token| request.header("authorization", token));
            let response = request.json(&json!({})).send().await.unwrap();
            assert_eq!(response.status(), 401, "{method} {path} with {token:?}");
            assert_eq!(response.headers()["www-authenticate"], "Bearer");
        }
    }
    for path in ["/health", "/healthz"] {
        let response = server.client.get(format!("{}{path}", server.url)).send().await.unwrap();
        assert_eq!(response.status(), 200, "{path}");
    }
    assert_eq!(
        server.get_json("/is_paused").await["is_paused"],
        false,
        "nothing of it was obeyed"
    );
    server.ok("/v1/completions", long(2)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_are_open_where_that_is_wanted() {
    let server = Server::start_with(Wanted {
        token: Some("right"),
        open_metrics: true,
        ..Wanted::default()
    })
    .await;
    let open = server
        .client
        .get(format!("{}/metrics", server.url))
        .send()
        .await
        .unwrap();
    assert_eq!(open.status(), 200);
    let closed = server
        .client
        .get(format!("{}/version", server.url))
        .send()
        .await
        .unwrap();
    assert_eq!(closed.status(), 401);
}
