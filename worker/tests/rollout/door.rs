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
    for path in ["/health", "/healthz", "/ping"] {
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
async fn a_client_that_sends_much_hears_that_its_token_is_wrong() {
    let server = Server::start_with(Wanted {
        token: Some("right"),
        ..Wanted::default()
    })
    .await;
    for _ in 0..10 {
        let upload = server.client.post(format!("{}/update_weights", server.url));
        let upload = upload.bearer_auth("wrong").body(vec![0_u8; 32 << 20]);
        let response = upload.send().await.unwrap();
        assert_eq!(response.status(), 401);
        assert!(response.text().await.unwrap().contains("Authorization: Bearer"));
    }
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

#[tokio::test(flavor = "multi_thread")]
async fn no_web_page_of_another_machine_reaches_a_server_without_a_token() {
    let server = Server::start().await;
    let (_, port) = server.url.rsplit_once(':').unwrap();
    let pause = |headers: &[(&str, &str)]| {
        let request = server.client.post(format!("{}/pause?mode=abort", server.url));
        let request = headers
            .iter()
            .fold(request, |request, (name, value)| request.header(*name, *value));
        async { request.send().await.unwrap().status().as_u16() }
    };
    let here: &str = &format!("localhost:{port}");
    for headers in [
        // A page's name that was made to point here, and requests of a page that needs to read no answer.
        &[("host", "evil.example:8000")][..],
        &[("host", "localhost.evil.example")],
        &[("origin", "http://evil.example")],
        &[("host", here), ("origin", "null")],
        &[("host", here), ("origin", "http://127.0.0.1.evil.example")],
    ] {
        assert_eq!(pause(headers).await, 403, "{headers:?}");
    }
    assert_eq!(
        server.get_json("/is_paused").await["is_paused"],
        false,
        "nothing of it was obeyed"
    );
    for headers in [
        &[][..],
        &[("host", here), ("origin", "http://localhost:3000")],
        &[("host", "[::1]:8000")],
        &[("host", "LOCALHOST")],
    ] {
        assert_eq!(pause(headers).await, 200, "{headers:?}");
    }
    // A token says enough, and no page has it.
    let guarded = Server::start_with(Wanted {
        token: Some("right"),
        ..Wanted::default()
    })
    .await;
    let named = guarded
        .client
        .get(format!("{}/version", guarded.url))
        .bearer_auth("right");
    let named = named.header("host", "models.example").send().await.unwrap();
    assert_eq!(named.status(), 200);
}
