//! An API server that knows three people: `admin` may get everything, `shopkeeper` all of the namespace shop, and `neighbour` all of
//! another one.

use std::{
    collections::BTreeSet,
    convert::Infallible,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use kube::{Client, client::Body};
use serde_json::{Value, json};

use crate::{
    explain::online::{Knowledge, Online, PATH},
    http::{DelegatedAuth, Gate, Measures, Pages, Reviewer, Router, options_for_tests},
    metrics::Metrics,
};

/// See the module.
#[derive(Clone, Default)]
pub struct People {
    questions: Arc<AtomicUsize>,
    gone: Arc<Mutex<BTreeSet<String>>>,
}

impl People {
    /// A gate before the answers, to which they come.
    pub fn gate(&self, knowledge: Knowledge) -> Gate {
        let router = Router::default().personal(PATH, Arc::new(Online::new(knowledge)));
        let options = options_for_tests();
        let measures = Measures::new(&Metrics::default()).unwrap();
        let reviewer = || Reviewer::new(self.client(), measures.clone());
        let auth = DelegatedAuth::new(&options, reviewer(), reviewer()).unwrap();
        Gate::new(Pages::new(Arc::new(router)), auth, options, measures)
    }

    /// How often it was asked what someone may see.
    pub fn questions(&self) -> usize {
        self.questions.load(Ordering::SeqCst)
    }

    /// One who may get nothing from now on.
    pub fn forget(&self, name: &str) {
        self.gone.lock().unwrap().insert(name.to_owned());
    }

    fn client(&self) -> Client {
        let this = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| this.clone().answer(request));
        Client::new(service, "default")
    }

    async fn answer(self, request: Request<Body>) -> Result<Response<Full<Bytes>>, Infallible> {
        let path = request.uri().path().to_owned();
        let body = request.into_body().collect().await.unwrap().to_bytes();
        let asked: Value = serde_json::from_slice(&body).unwrap_or_default();
        let status = match path.rsplit('/').next().unwrap() {
            "tokenreviews" => {
                let name = asked["spec"]["token"].as_str().unwrap();
                let known = matches!(name, "admin" | "shopkeeper" | "neighbour");
                json!({ "authenticated": known, "user": { "username": name, "groups": ["g"] } })
            }
            "subjectaccessreviews" => json!({ "allowed": self.may(&asked["spec"]) }),
            _ => json!({}),
        };
        let mut answer = Response::new(Full::from(json!({ "status": status }).to_string()));
        *answer.status_mut() =
            if path.contains("configmaps") { http::StatusCode::NOT_FOUND } else { http::StatusCode::CREATED };
        Ok(answer)
    }

    fn may(&self, spec: &Value) -> bool {
        let user = spec["user"].as_str().unwrap();
        let Some(attributes) = spec.get("resourceAttributes") else { return false };
        self.questions.fetch_add(1, Ordering::SeqCst);
        assert_eq!((&attributes["verb"], &attributes["version"]), (&json!("get"), &json!("v1")));
        if self.gone.lock().unwrap().contains(user) {
            return false;
        }
        let namespace = attributes["namespace"].as_str().unwrap_or_default();
        match user {
            "admin" => true,
            "shopkeeper" => namespace == "shop",
            _ => namespace == "elsewhere",
        }
    }
}
