//! `--tracing-config-file`: the `TracingConfiguration` that the API server and the kubelet take.
//!
//! In: YAML or JSON. Out: where to send traces, and how many; or what is wrong. Decoding is strict: an unknown field is
//! an error, as a mistyped one would silently trace nothing.

use serde::Deserialize;

/// Where OTLP over gRPC is received by default.
const DEFAULT_ENDPOINT: &str = "localhost:4317";

/// All operations.
const MILLION: i64 = 1_000_000;

/// Where traces go, and how many of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracingConfig {
    /// URI of the collector.
    pub endpoint: String,
    /// Operations of a million that are traced.
    pub per_million: u32,
}

/// The file's form.
// apiserver: pkg/apis/apiserver/v1/types.go; component-base: tracing/api/v1/types.go.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct TracingConfiguration {
    api_version: String,
    kind: String,
    endpoint: Option<String>,
    sampling_rate_per_million: Option<i64>,
}

impl TracingConfig {
    /// Reads the text of a file.
    ///
    /// # Errors
    /// What is wrong with it, in one line.
    pub fn parse(text: &str) -> Result<Self, String> {
        let read: TracingConfiguration = serde_saphyr::from_str(text)
            .map_err(|error| error.to_string().lines().next().unwrap_or_default().to_owned())?;
        let TracingConfiguration { api_version, kind, endpoint, sampling_rate_per_million } = read;
        let known = ["v1", "v1beta1", "v1alpha1"].map(|version| format!("apiserver.config.k8s.io/{version}"));
        if kind != "TracingConfiguration" || !known.contains(&api_version) {
            return Err(format!(
                "is {kind} of {api_version}, not TracingConfiguration of apiserver.config.k8s.io/v1"
            ));
        }
        // Without a rate upstream follows its caller's choice; mooring has no caller.
        let rate = sampling_rate_per_million.unwrap_or(0);
        let per_million = u32::try_from(rate).ok().filter(|_| rate <= MILLION);
        let per_million = per_million
            .ok_or_else(|| format!("samplingRatePerMillion: {rate} is not from 0 to {MILLION}"))?;
        let endpoint = uri(endpoint.as_deref().unwrap_or(DEFAULT_ENDPOINT))?;
        Ok(Self { endpoint, per_million })
    }
}

/// The URI of an endpoint in gRPC's notation.
///
/// Upstream: component-base's tracing/api/v1/config.go, validateEndpoint.
fn uri(endpoint: &str) -> Result<String, String> {
    let (scheme, rest) = endpoint.split_once("://").unwrap_or(("dns", endpoint));
    let problem = match scheme {
        "dns" => {
            // After a name server, which is the system's here.
            let host = rest.strip_prefix('/').unwrap_or(rest);
            let uri = format!("http://{host}");
            let valid = uri.parse::<http::Uri>().is_ok_and(|uri| uri.host().is_some());
            if valid && !host.contains('/') {
                return Ok(uri);
            }
            "is not host:port".to_owned()
        }
        "unix" => return Ok(format!("unix:{rest}")),
        "unix-abstract" => "abstract sockets are not supported: use unix:///path".to_owned(),
        other => format!("unsupported scheme {other:?}: there are none, dns and unix"),
    };
    Err(format!("endpoint: {endpoint:?}: {problem}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "apiVersion: apiserver.config.k8s.io/v1\nkind: TracingConfiguration\n";

    fn parse(rest: &str) -> Result<TracingConfig, String> {
        TracingConfig::parse(&format!("{HEAD}{rest}"))
    }

    #[test]
    fn the_file_of_an_api_server_is_taken_as_it_is() {
        let config =
            |endpoint: &str, per_million| Ok(TracingConfig { endpoint: endpoint.to_owned(), per_million });
        let cases = [
            ("", config("http://localhost:4317", 0)),
            ("samplingRatePerMillion: 100\nendpoint: otel:4317", config("http://otel:4317", 100)),
            (
                "samplingRatePerMillion: 1000000\nendpoint: dns:///otel:4317",
                config("http://otel:4317", 1_000_000),
            ),
            ("endpoint: '[::1]:4317'", config("http://[::1]:4317", 0)),
            ("endpoint: unix:///run/otel.sock", config("unix:/run/otel.sock", 0)),
        ];
        for (text, expected) in cases {
            assert_eq!(parse(text), expected, "{text}");
        }
        let json = r#"{"apiVersion":"apiserver.config.k8s.io/v1beta1","kind":"TracingConfiguration","endpoint":"a:1"}"#;
        assert_eq!(TracingConfig::parse(json), config("http://a:1", 0));
    }

    #[test]
    fn what_is_wrong_is_said() {
        let cases = [
            ("samplingRatePerMillon: 5", "unknown field"),
            ("samplingRatePerMillion: -1", "samplingRatePerMillion: -1 is not from 0 to 1000000"),
            ("samplingRatePerMillion: 1000001", "samplingRatePerMillion: 1000001 is not from 0"),
            ("endpoint: https://otel:4317", "endpoint: \"https://otel:4317\": unsupported scheme \"https\""),
            ("endpoint: unix-abstract://x", "abstract sockets"),
            ("endpoint: a/b", "is not host:port"),
            ("endpoint: a\nendpoint: b", "duplicate"),
        ];
        for (text, expected) in cases {
            let error = parse(text).unwrap_err();
            assert!(error.contains(expected) && !error.contains('\n'), "{text}: {error}");
        }
        let other = TracingConfig::parse("apiVersion: v1\nkind: Pod\n").unwrap_err();
        assert!(other.starts_with("is Pod of v1"), "{other}");
        assert!(TracingConfig::parse("").is_err());
    }
}
