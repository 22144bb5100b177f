//! The proxy before an API server: the kubeconfig's own, else the environment's by Go's rules (`golang.org/x/net/http/httpproxy`), which are
//! kubectl's. kube holds NO_PROXY against the name of the proxy and not of the server, and against the kubeconfig's proxy as well.

use std::net::IpAddr;

use anyhow::anyhow;
use axum::http::Uri;
use axum::http::uri::InvalidUri;
use hyper_util::client::proxy::matcher::Matcher;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError};

const PROXY: [&str; 2] = ["HTTPS_PROXY", "https_proxy"];
const EXCEPTIONS: [&str; 2] = ["NO_PROXY", "no_proxy"];

/// What the kubeconfig says of the chosen cluster: `proxy-url`.
pub fn given(kubeconfig: &Kubeconfig, options: &KubeConfigOptions) -> Option<String> {
    let context = options.context.as_ref().or(kubeconfig.current_context.as_ref())?;
    let context = kubeconfig.contexts.iter().find(|known| known.name == *context)?;
    let context = context.context.as_ref()?;
    let cluster = options.cluster.as_ref().unwrap_or(&context.cluster);
    let cluster = kubeconfig.clusters.iter().find(|known| known.name == *cluster)?;
    let proxy = cluster.cluster.as_ref()?.proxy_url.clone();
    proxy.filter(|url| !url.is_empty())
}

/// The proxy for a server: that one, else of these variables.
pub fn before(
    server: &Uri,
    given: Option<String>,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Option<Uri>, InvalidUri> {
    let first = |names: [&str; 2]| {
        let mut values = names.into_iter().filter_map(&variable);
        values.find(|value| !value.is_empty())
    };
    let of_environment = || {
        let proxy = first(PROXY).filter(|_| server.scheme_str() == Some("https"))?;
        let is_excepted = is_excepted(server, &first(EXCEPTIONS).unwrap_or_default());
        (!is_excepted).then(|| match proxy.contains("://") {
            true => proxy,
            false => format!("http://{proxy}"),
        })
    };
    let proxy = given.or_else(of_environment);
    proxy.map(|url| url.parse::<Uri>()).transpose()
}

/// Whether the server is reached without the proxy: it is this machine, or one of the exceptions.
fn is_excepted(server: &Uri, exceptions: &str) -> bool {
    let host = without_brackets(server.host().unwrap_or_default());
    let is_here = host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    let entries = exceptions.split(',').map(str::trim);
    if is_here || host == "localhost" || entries.clone().any(|entry| entry == "*") {
        return true;
    }
    let port = server.port_u16().unwrap_or(443);
    let of_port: Vec<&str> = entries.filter_map(|entry| of_port(entry, port)).collect();
    // The matcher knows hosts, domains, addresses and networks.
    let matcher = Matcher::builder().all("http://proxy").no(of_port.join(",")).build();
    matcher.intercept(server).is_none()
}

/// The host, domain or network of an entry; None where it is of another port.
fn of_port(entry: &str, port: u16) -> Option<&str> {
    let (host, only) = match entry.rsplit_once(':') {
        // Else it is an address of IPv6, whose colons are before no port.
        Some((host, only)) if !host.contains(':') || host.ends_with(']') => (host, Some(only)),
        _ => (entry, None),
    };
    let is_of_port = only.is_none_or(|only| only.parse::<u16>() == Ok(port));
    is_of_port.then(|| without_brackets(host.strip_prefix('*').unwrap_or(host)))
}

fn without_brackets(host: &str) -> &str {
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    bare.unwrap_or(host)
}

/// Where kube, which reads NO_PROXY all the same, cannot read it.
pub fn misread(error: &KubeconfigError) -> Option<anyhow::Error> {
    let KubeconfigError::ParseNoProxy(cause) = error else {
        return None;
    };
    Some(anyhow!(
        "NO_PROXY cannot be used: {cause}; give hosts, .domains, addresses and networks, with one comma between two"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OF_ENVIRONMENT: &str = "http://proxy:3128";

    fn proxy(server: &str, given: Option<&str>, variables: &[(&str, &str)]) -> Option<Uri> {
        let variable = |name: &str| {
            let known = variables.iter().find(|(known, _)| *known == name);
            known.map(|(_, value)| (*value).to_owned())
        };
        before(&server.parse().unwrap(), given.map(String::from), variable).unwrap()
    }

    fn is_direct(server: &str, exceptions: &str) -> bool {
        let variables = [("HTTPS_PROXY", OF_ENVIRONMENT), ("NO_PROXY", exceptions)];
        proxy(server, None, &variables).is_none()
    }

    #[test]
    fn servers_that_no_proxy_names_are_reached_directly_by_gos_rules() {
        let (named, by_address) = ("https://api.east.example:6443", "https://10.1.2.3:6443");
        let of_v6 = "https://[fd00::1]:6443";
        for (server, exceptions, expected) in [
            (named, "", false),
            (named, "*", true),
            (by_address, "other, *", true),
            (named, "api.east.example", true),
            (named, "API.East.example", true),
            (named, "east.example", true),
            (named, "ast.example", false),
            (named, "other.example, .example", true),
            (named, "*.example", true),
            (named, "api.east.example:6443", true),
            (named, ".example:443", false),
            ("https://api.east.example", ".example:443", true),
            (by_address, "10.0.0.0/8", true),
            (by_address, "10.1.2.3", true),
            (by_address, "10.1.2.3:6443", true),
            (by_address, "10.1.2.3:443", false),
            (by_address, "192.168.0.0/16,.example", false),
            (of_v6, "fd00::/8", true),
            (of_v6, "fd00::1", true),
            (of_v6, "[fd00::1]:6443", true),
            (of_v6, "[fd00::1]:443", false),
            ("https://localhost:6443", "", true),
            ("https://127.0.0.1:6443", "", true),
            ("https://[::1]:6443", "", true),
        ] {
            assert_eq!(is_direct(server, exceptions), expected, "{server}: {exceptions}");
        }
    }

    #[test]
    fn the_proxy_is_the_kubeconfigs_whatever_no_proxy_says_else_that_of_the_environment() {
        let server = "https://api.example:6443";
        let uri = |text: &str| Some(text.parse::<Uri>().unwrap());
        let all = [("HTTPS_PROXY", OF_ENVIRONMENT), ("NO_PROXY", "*")];
        assert_eq!(proxy(server, Some("socks5://own:1080"), &all), uri("socks5://own:1080"));
        // NO_PROXY is of the server, and not of the proxy.
        let of_proxy = [("HTTPS_PROXY", OF_ENVIRONMENT), ("NO_PROXY", "proxy:3128")];
        assert_eq!(proxy(server, None, &of_proxy), uri(OF_ENVIRONMENT));
        let lower = [("HTTPS_PROXY", ""), ("https_proxy", "proxy:3128")];
        assert_eq!(proxy(server, None, &lower), uri(OF_ENVIRONMENT));
        assert_eq!(proxy("http://api.example:8001", None, &lower), None);
        assert_eq!(proxy(server, None, &[]), None);
    }

    #[test]
    fn the_kubeconfigs_proxy_is_that_of_the_chosen_cluster() {
        let text = "{apiVersion: v1, kind: Config, current-context: a, users: [], \
            clusters: [{name: one, cluster: {server: 'https://one', proxy-url: 'http://own'}}, {name: two, cluster: {server: 'https://two'}}], \
            contexts: [{name: a, context: {cluster: one, user: ''}}, {name: b, context: {cluster: two, user: ''}}]}";
        let kubeconfig = Kubeconfig::from_yaml(text).unwrap();
        for (context, cluster, expected) in [
            (None, None, Some("http://own")),
            (None, Some("two"), None),
            (Some("b"), None, None),
            (Some("b"), Some("one"), Some("http://own")),
            (Some("c"), None, None),
        ] {
            let options = KubeConfigOptions {
                context: context.map(String::from),
                cluster: cluster.map(String::from),
                user: None,
            };
            assert_eq!(given(&kubeconfig, &options).as_deref(), expected);
        }
    }
}
