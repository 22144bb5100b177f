//! The one way to make an HTTP client: TLS by rustls with ring. `reqwest::Client::new()` would panic without the provider
//! that [`builder`] installs.

/// A client builder with TLS ready and this program's user agent.
pub fn builder() -> reqwest::ClientBuilder {
    // Err means that a provider is installed already, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder().user_agent(concat!("ppo-worker/", env!("CARGO_PKG_VERSION")))
}
