//! The embedded server, with a recorder in front of it in place of the audit log.

use std::{
    collections::HashMap,
    convert::Infallible,
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Arc, Mutex},
    time::Duration,
};

use futures::future::BoxFuture;
use http::{Method, Request, Response};
use http_body_util::BodyExt;
use kube::{Client, client::Body};
use serde_json::Value;
use testbed::{
    Server,
    faults::{Faults, Sent},
    request::Place,
};
use tokio::time::Instant;
use tower::{Layer, ServiceExt};

use super::{Backend, DEBUG_READER, Destination, METRICS_READER, Proxy};
use crate::{
    audit::{DAEMON, Entry},
    control_plane::User,
    daemon::{Daemon, Launch, StartInProcess},
    history::Change,
};

/// Which of several servers answers a request: a function of the seed and of the requests of that method and path before
/// it, so that it does not depend on which task asks first.
#[derive(Debug, Default)]
struct Choice {
    seed: u64,
    asked: HashMap<(Method, String), u64>,
}

impl Choice {
    fn of<'a, T>(&mut self, method: &Method, path: &str, among: &'a [T]) -> Option<&'a T> {
        let count = self.asked.entry((method.clone(), path.to_owned())).or_default();
        *count += 1;
        let mut hasher = DefaultHasher::new();
        (self.seed, method.as_str(), path, *count).hash(&mut hasher);
        usize::try_from(hasher.finish() >> 32)
            .ok()?
            .checked_rem(among.len())
            .and_then(|chosen| among.get(chosen))
    }
}

/// An embedded server of one story.
#[derive(Clone)]
pub struct Embedded {
    start: StartInProcess,
    server: Server,
    /// Those that daemons ask, if these are others: each request goes to one of them.
    asked: Vec<Server>,
    choice: Arc<Mutex<Choice>>,
    record: Arc<Mutex<Vec<Entry>>>,
}

impl Embedded {
    /// One before which daemons are started like this.
    pub fn new(start: StartInProcess) -> Self {
        Self::before(start, Server::default())
    }

    /// The same before a server that is there.
    pub fn before(start: StartInProcess, server: Server) -> Self {
        Self { start, server, asked: Vec::new(), choice: Arc::default(), record: Arc::default() }
    }

    /// The same, of whose daemons each request goes to one of several servers before the same etcd, of which each is
    /// so late. The seed says which.
    #[must_use]
    pub fn late_by(mut self, lags: &[Duration], seed: u64) -> Self {
        self.choice.lock().unwrap().seed = seed;
        self.asked = lags.iter().map(|lag| self.server.late_by(*lag)).collect();
        self
    }

    /// The server as one user sees it.
    fn service(
        &self,
        user: &'static str,
    ) -> impl tower::Service<
        Request<Body>,
        Response = Response<testbed::Body>,
        Error = Infallible,
        Future: Send,
    > + Clone
    + Send
    + 'static {
        let this = self.clone();
        tower::service_fn(move |request| this.clone().answer(user, request))
    }

    async fn answer(
        self,
        user: &'static str,
        request: Request<Body>,
    ) -> Result<Response<testbed::Body>, Infallible> {
        let (head, body) = request.into_parts();
        let is_read = head.method == Method::GET;
        let body = body.collect().await.expect("a body without a socket is whole").to_bytes();
        let place = Place::parse(head.uri.path()).filter(|_| user == DAEMON || !is_read);
        let entry = place.map(|place| entry(user, &head, &body, place));
        let server = match user {
            DAEMON => {
                let mut choice = self.choice.lock().unwrap();
                choice.of(&head.method, head.uri.path(), &self.asked).unwrap_or(&self.server).clone()
            }
            _ => self.server,
        };
        let answer = server.oneshot(Request::from_parts(head, Body::from(body.to_vec()))).await?;
        let Some(mut entry) = entry else { return Ok(answer) };
        entry.code = answer.status().as_u16().into();
        if is_read {
            self.record.lock().unwrap().push(entry);
            return Ok(answer);
        }
        let (head, body) = answer.into_parts();
        let bytes = body.collect().await?.to_bytes();
        entry.response = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
        self.record.lock().unwrap().push(entry);
        Ok(Response::from_parts(head, http_body_util::Full::new(bytes).boxed_unsync()))
    }
}

/// What the audit log says of a request.
fn entry(user: &str, head: &http::request::Parts, body: &[u8], place: Place) -> Entry {
    let is_watch = head.uri.query().is_some_and(|query| query.contains("watch=true"));
    Entry {
        user: user.to_owned(),
        verb: verb(&head.method, &place, is_watch).to_owned(),
        group: place.kind.group.to_owned(),
        resource: match place.subresource.as_str() {
            "" => place.kind.plural.to_owned(),
            subresource => format!("{}/{subresource}", place.kind.plural),
        },
        name: place.name,
        code: 0,
        request: serde_json::from_slice(body).unwrap_or(Value::Null),
        response: Value::Null,
        at: Some(Instant::now()),
        sent: head.extensions.get::<Sent>().map(|Sent(sent)| *sent),
    }
}

/// As the audit log names it.
fn verb(method: &Method, place: &Place, is_watch: bool) -> &'static str {
    match (method.as_str(), place.name.is_empty()) {
        ("GET", _) if is_watch => "watch",
        ("GET", true) => "list",
        ("GET", false) => "get",
        ("POST", _) => "create",
        ("PUT", _) => "update",
        ("PATCH", _) => "patch",
        ("DELETE", true) => "deletecollection",
        _ => "delete",
    }
}

impl Backend for Embedded {
    fn embedded(&self) -> Option<&Server> {
        Some(&self.server)
    }

    fn client(&self, user: User) -> Client {
        Client::new(self.service(user.name()), "default")
    }

    fn proxy(&self) -> BoxFuture<'_, Proxy> {
        let faults = Faults::default();
        let client = Client::new(faults.layer(self.service(DAEMON)), "default");
        Box::pin(async { Proxy { faults, destination: Destination::InProcess(client) } })
    }

    fn visitor(&self, name: &'static str, roles: &'static [&'static str]) -> BoxFuture<'_, String> {
        let token = format!("token-of-{name}");
        let of_role = |role: &&str| match *role {
            METRICS_READER => ["/metrics", "/metrics/openmetrics", "/metrics/slis"].as_slice(),
            DEBUG_READER => &["/debug/attach-detach", "/debug/binder", "/debug/watches"],
            _ => &[],
        };
        let paths: Vec<&str> = roles.iter().flat_map(of_role).copied().collect();
        self.server.reviews().know(&token, name, &["system:authenticated"], &paths);
        Box::pin(async { token })
    }

    fn start(&self, launch: &Launch, proxy: &Proxy) -> Daemon {
        let Destination::InProcess(client) = &proxy.destination else {
            panic!("the proxy leads to another server");
        };
        launch.start_in_process(self.start, client.clone())
    }

    fn proxied_client(&self, proxy: &Proxy) -> Client {
        Client::new(proxy.layer(self.service(User::Admin.name())), "default")
    }

    fn daemons_client(&self) -> Client {
        Client::new(self.service(DAEMON), "default")
    }

    fn revision(&self) -> BoxFuture<'_, u64> {
        Box::pin(async { self.server.revision() })
    }

    fn history(&self, after: u64) -> BoxFuture<'_, Vec<Change>> {
        let changes = self.server.history(after).expect("stories are shorter than the server's memory");
        let changes = changes.into_iter().map(|(kind, change)| Change {
            revision: change.revision,
            resource: kind.plural.to_owned(),
            name: change.key.to_string(),
            before: change.before.map(|object| object.value.clone()),
            after: (!change.is_deletion).then(|| change.after.value.clone()),
        });
        let changes = changes.collect();
        Box::pin(async { changes })
    }

    fn recorded(&self) -> usize {
        self.record.lock().unwrap().len()
    }

    fn requests(&self, from: usize) -> Vec<Entry> {
        self.record.lock().unwrap()[from..].to_vec()
    }
}
