//! How tests reach an API server.

use kube::Config;

/// A kube configuration that neither retries nor gives up: a test wants to see every answer.
pub fn plain_config(url: &str) -> Config {
    let mut config = Config::new(url.parse().expect("a URL"));
    config.default_retry = false;
    config
}
