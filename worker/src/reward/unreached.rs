//! Why a reward server could not be reached, and what would help.

use reqwest::Error;

use crate::http_client::innermost;

/// Words for a call of which nothing, or not all, came back. `variable` is the environment.
pub(super) fn unreached(error: &Error, variable: impl Fn(&str) -> Option<String>) -> String {
    let what = if error.is_connect() {
        "cannot connect"
    } else {
        "the connection broke"
    };
    let cause = innermost(error);
    let help = if cause.contains("invalid peer certificate") {
        "; the certificate must be one of an authority that this machine trusts, or that SSL_CERT_FILE names (a file in PEM form), and must \
         name the host"
            .to_owned()
    } else if error.is_connect() {
        let scheme = error.url().map_or("http", |url| url.scheme());
        proxy(scheme, variable).map_or_else(String::new, |name| {
            format!("; {name} is set: NO_PROXY names the hosts that are called without that proxy")
        })
    } else {
        // As Python's servers end a call whose code has raised an exception.
        "; the server's own log may say why".to_owned()
    };
    format!("{what}: {cause}{help}")
}

/// The variable that names a proxy for addresses of `scheme`.
fn proxy(scheme: &str, variable: impl Fn(&str) -> Option<String>) -> Option<String> {
    let names = [format!("{scheme}_proxy"), "all_proxy".to_owned()];
    let mut names = names.into_iter().flat_map(|name| [name.to_uppercase(), name]);
    names.find(|name| variable(name).is_some_and(|value| !value.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_is_named_by_the_variable_that_gives_it() {
        let only = |wanted: &'static str| move |name: &str| (name == wanted).then(|| "http://proxy:3128".to_owned());
        assert_eq!(proxy("http", only("http_proxy")).as_deref(), Some("http_proxy"));
        assert_eq!(proxy("https", only("HTTPS_PROXY")).as_deref(), Some("HTTPS_PROXY"));
        assert_eq!(proxy("http", only("ALL_PROXY")).as_deref(), Some("ALL_PROXY"));
        assert_eq!(proxy("http", only("HTTPS_PROXY")), None);
        assert_eq!(proxy("http", |_| Some(String::new())), None);
    }

    #[tokio::test]
    async fn who_refuses_a_connection_may_be_the_proxy() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        drop(listener);
        let client = crate::http_client::builder().no_proxy().build().unwrap();
        let error = client.get(&url).send().await.unwrap_err();
        let plain = unreached(&error, |_| None);
        assert!(
            plain.starts_with("cannot connect: Connection refused") && !plain.contains("PROXY"),
            "{plain}"
        );
        let words = unreached(&error, |name| (name == "HTTP_PROXY").then(|| url.clone()));
        assert!(words.contains("; HTTP_PROXY is set: NO_PROXY names"), "{words}");
    }
}
