//! A Prometheus that runs beside the test, asked over HTTP.

use kube::Client;
use serde_json::Value;
use test_support::visitor::{Credentials, ask};

/// One series over time.
#[derive(Clone, Debug)]
pub struct Series {
    pub labels: serde_json::Map<String, Value>,
    /// Seconds since 1970, and what was seen; no NaN.
    pub points: Vec<(f64, f64)>,
}

/// Where it answers.
pub struct Api(Client);

impl Api {
    pub fn at(address: &str) -> Self {
        Self(Credentials::default().client(&format!("http://{address}")))
    }

    /// What it answers, if it answers at all.
    async fn get(&self, path: &str, parameters: &[(&str, &str)]) -> Option<Result<Value, String>> {
        let query: String = form_urlencoded::Serializer::new(String::new()).extend_pairs(parameters).finish();
        let (status, text) = ask(&self.0, &format!("{path}?{query}")).await?;
        let mut answer: Value = serde_json::from_str(&text).unwrap_or(Value::Null);
        Some(match answer["status"].as_str() {
            Some("success") => Ok(answer["data"].take()),
            _ => Err(format!("{status}: {text}")),
        })
    }

    /// Whether it is ready.
    pub async fn is_ready(&self) -> bool {
        self.get("/api/v1/status/buildinfo", &[]).await.is_some_and(|answer| answer.is_ok())
    }

    /// Data of a page of its API.
    pub async fn data(&self, path: &str) -> Value {
        self.get(path, &[]).await.expect("Prometheus answers").unwrap()
    }

    /// The value of a query now, summed up over its series; `None` without any.
    pub async fn value(&self, query: &str) -> Option<f64> {
        let answer = self.get("/api/v1/query", &[("query", query)]).await?.unwrap();
        let number = |series: &Value| series["value"][1].as_str().and_then(|text| text.parse::<f64>().ok());
        let values: Vec<f64> = answer["result"].as_array()?.iter().filter_map(number).collect();
        (!values.is_empty()).then(|| values.iter().sum())
    }

    /// What a query returned from one time to another, in seconds since 1970.
    ///
    /// # Errors
    /// What Prometheus says of the query.
    pub async fn range(&self, query: &str, from: f64, to: f64, step: f64) -> Result<Vec<Series>, String> {
        let (from, to, step) = (from.to_string(), to.to_string(), step.to_string());
        let parameters = [("query", query), ("start", &*from), ("end", &*to), ("step", &*step)];
        let answer = self.get("/api/v1/query_range", &parameters).await.ok_or("no answer")??;
        let series = answer["result"].as_array().into_iter().flatten().map(|series| Series {
            labels: series["metric"].as_object().cloned().unwrap_or_default(),
            points: points(&series["values"]),
        });
        Ok(series.filter(|series| !series.points.is_empty()).collect())
    }
}

fn points(values: &Value) -> Vec<(f64, f64)> {
    let point = |pair: &Value| Some((pair[0].as_f64()?, pair[1].as_str()?.parse::<f64>().ok()?));
    let points = values.as_array().into_iter().flatten().filter_map(point);
    points.filter(|(_, value)| !value.is_nan()).collect()
}
