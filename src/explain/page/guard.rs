//! Who may read the page of one person: `mooring explain --serve`. Pure.
//!
//! It is served on loopback, where every user and every web page of this machine can reach it. So its paths begin with a secret
//! that only the printed URL has; and a request must have been meant for this server (`Host`, against names that are made to
//! lead here) and not come from another page (`Origin`).

use std::net::SocketAddr;

use http::{HeaderMap, header};
use sha2::{Digest, Sha256};

/// Bytes of the secret: more than can be tried.
const SECRET: usize = 16;

/// What a request has to show.
#[derive(Clone, derive_more::Debug)]
#[debug("Guard({hosts:?})")]
pub struct Guard {
    secret: String,
    hosts: Vec<String>,
}

impl Guard {
    /// A guard with a secret of its own, for a server that listens here.
    ///
    /// # Errors
    /// The system gives no random bytes, or the address is not a loopback one.
    pub fn new(listens: SocketAddr) -> Result<Self, String> {
        if !listens.ip().is_loopback() {
            return Err(format!(
                "{listens} is not a loopback address: the page would be open to the network"
            ));
        }
        let mut bytes = [0; SECRET];
        getrandom::fill(&mut bytes).map_err(|error| format!("no random bytes: {error}"))?;
        let secret = format!("{:032x}", u128::from_be_bytes(bytes));
        let port = listens.port();
        Ok(Self { secret, hosts: vec![listens.to_string(), format!("localhost:{port}")] })
    }

    /// What each path begins with.
    pub fn base(&self) -> String {
        format!("/t/{}", self.secret)
    }

    /// What is printed for the one who may read.
    pub fn url(&self) -> String {
        let host = self.hosts.first().map(String::as_str).unwrap_or_default();
        format!("http://{host}{}/explain/", self.base())
    }

    /// Whether a request may be answered.
    ///
    /// # Errors
    /// Why not.
    pub fn admits(&self, path: &str, headers: &HeaderMap) -> Result<(), &'static str> {
        let mut hosts = headers.get_all(header::HOST).iter();
        let is_ours = |host: &str| self.hosts.iter().any(|ours| host.eq_ignore_ascii_case(ours));
        match (hosts.next().and_then(|host| host.to_str().ok()), hosts.next()) {
            (Some(host), None) if is_ours(host) => {}
            _ => return Err("the request is for another host"),
        }
        for origin in headers.get_all(header::ORIGIN) {
            let host = origin.to_str().ok().and_then(|origin| origin.strip_prefix("http://"));
            if !host.is_some_and(is_ours) {
                return Err("the request comes from another page");
            }
        }
        let shown = path.strip_prefix("/t/").and_then(|rest| rest.split('/').next()).unwrap_or_default();
        // Digests are compared, so that the time it takes tells nothing of the secret.
        if Sha256::digest(shown) != Sha256::digest(&self.secret) {
            return Err("the address lacks its secret: copy all of what was printed");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

    use super::*;

    type Headers = &'static [(HeaderName, &'static str)];

    #[test]
    fn only_who_knows_the_secret_and_means_this_server_is_admitted() {
        let guard = Guard::new("127.0.0.1:8443".parse().unwrap()).unwrap();
        let path = format!("{}/explain/", guard.base());
        let rows: &[(&str, Headers, bool)] = &[
            ("as printed", &[(header::HOST, "127.0.0.1:8443")], true),
            ("by name", &[(header::HOST, "LocalHost:8443")], true),
            (
                "its own form",
                &[(header::HOST, "localhost:8443"), (header::ORIGIN, "http://localhost:8443")],
                true,
            ),
            ("no host", &[], false),
            ("two hosts", &[(header::HOST, "127.0.0.1:8443"), (header::HOST, "evil.example")], false),
            ("a name that was made to lead here", &[(header::HOST, "evil.example:8443")], false),
            ("another port", &[(header::HOST, "127.0.0.1:80")], false),
            (
                "another page",
                &[(header::HOST, "127.0.0.1:8443"), (header::ORIGIN, "http://evil.example")],
                false,
            ),
            ("a page of no origin", &[(header::HOST, "127.0.0.1:8443"), (header::ORIGIN, "null")], false),
            (
                "another scheme",
                &[(header::HOST, "127.0.0.1:8443"), (header::ORIGIN, "https://127.0.0.1:8443")],
                false,
            ),
        ];
        for (name, headers, admitted) in rows {
            let mut map = HeaderMap::new();
            for (key, value) in *headers {
                map.append(key, HeaderValue::from_static(value));
            }
            assert_eq!(guard.admits(&path, &map).is_ok(), *admitted, "{name}");
        }
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, HeaderValue::from_static("127.0.0.1:8443"));
        for path in ["/explain/", "/t//explain/", "/t/0123/explain/", "/"] {
            assert!(guard.admits(path, &headers).is_err(), "{path}");
        }
        assert!(guard.admits(&path, &headers).is_ok());
        assert!(guard.url().starts_with("http://127.0.0.1:8443/t/"), "{}", guard.url());
    }

    #[test]
    fn it_is_served_on_loopback_alone_and_each_time_under_another_secret() {
        for address in ["0.0.0.0:1", "10.0.0.1:1", "[::]:1", "[2001:db8::1]:1"] {
            assert!(Guard::new(address.parse().unwrap()).is_err(), "{address}");
        }
        let [one, other] = [(); 2].map(|()| Guard::new("[::1]:1".parse().unwrap()).unwrap());
        assert_ne!(one.base(), other.base());
        assert_eq!(one.base().len(), "/t/".len() + 2 * SECRET);
        assert!(!format!("{one:?}").contains(&one.secret), "a secret is not printed by chance");
    }
}
