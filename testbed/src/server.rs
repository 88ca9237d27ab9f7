//! The server: requests in, answers out.
//!
//! [`Server`] is a `tower::Service`, so `kube::Client::new` uses it without a socket, layers (faults,
//! delays) wrap it like any service, and [`super::serve()`] serves it over HTTP. Each request that writes
//! completes under the store's lock, except DELETE, which reads and removes in two steps. No request
//! waits while it holds the lock.

use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures::stream;
use http::{HeaderValue, Method, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::{Bytes, Frame};
use serde_json::Value;
use tokio::{
    sync::watch::{self, Receiver},
    task::yield_now,
    time::timeout,
};

use super::{
    clock::Clock,
    delete::{self, DeleteOptions, Deletion, Progress},
    discovery, json,
    kinds::kind::Kind,
    list::{ListOptions, list},
    managed::Writer,
    negotiate::{View, typed},
    openapi,
    patch::{self, PatchType},
    request::{Place, Query, Request, WriteOptions},
    reviews::{self, Reviews},
    status::{Refusal, success},
    store::{Backup, Change, Object, SharedStore, Store, Unknown},
    watch::Watch,
    write,
};

/// How long a read waits for a revision that does not exist yet.
const REVISION_WAIT: Duration = Duration::from_secs(3);

/// Changes per kind that watches and paged lists can go back by default.
const LOG_CAPACITY: usize = 100_000;

/// The body of an answer.
pub type Body = UnsyncBoxBody<Bytes, Infallible>;

/// What may differ between servers.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Changes per kind that watches and paged lists can go back.
    pub log_capacity: usize,
    /// What time it is.
    pub clock: Clock,
}

impl Default for Options {
    fn default() -> Self {
        Self { log_capacity: LOG_CAPACITY, clock: Clock::default() }
    }
}

#[derive(Debug)]
struct Inner {
    store: SharedStore,
    clock: Clock,
    reviews: Reviews,
}

/// An API server in this process. Clones are the same server.
#[derive(Clone, Debug)]
pub struct Server {
    inner: Arc<Inner>,
    /// The revision up to which its watches tell; without it they tell all there is.
    told: Option<Receiver<u64>>,
}

impl Default for Server {
    fn default() -> Self {
        Self::new(Options::default())
    }
}

impl Server {
    /// A server with the namespaces every cluster has, and nothing else.
    pub fn new(options: Options) -> Self {
        let mut store = Store::new(options.log_capacity);
        write::preset(&mut store, &options.clock);
        Self {
            inner: Arc::new(Inner {
                store: SharedStore::new(store),
                clock: options.clock,
                reviews: Reviews::default(),
            }),
            told: None,
        }
    }

    /// Another server before the same etcd, whose watch cache is so late. Lists and reads are consistent, as those that
    /// name no revision are on the real one. It lives on the runtime that this is called on.
    #[must_use]
    pub fn late_by(&self, lag: Duration) -> Self {
        let mut written = self.subscribe_revision();
        let (sender, told) = watch::channel(*written.borrow_and_update());
        let sender = Arc::new(sender);
        tokio::spawn(async move {
            while written.changed().await.is_ok() {
                let (revision, sender) = (*written.borrow_and_update(), Arc::clone(&sender));
                tokio::spawn(async move {
                    tokio::time::sleep(lag).await;
                    sender.send_if_modified(|told| revision > std::mem::replace(told, revision.max(*told)));
                });
            }
        });
        Self { inner: Arc::clone(&self.inner), told: Some(told) }
    }

    /// A client of this server that needs no socket. It asks in the namespace `default`.
    pub fn client(&self) -> kube::Client {
        kube::Client::new(self.clone(), "default")
    }

    /// The revision of the last write.
    pub fn revision(&self) -> u64 {
        self.with_store(|store| store.revision())
    }

    /// Tells the revision of every write.
    pub fn subscribe_revision(&self) -> tokio::sync::watch::Receiver<u64> {
        self.with_store(|store| store.subscribe_revision())
    }

    /// All changes after a revision, in order.
    ///
    /// # Errors
    /// Some of them have been forgotten.
    pub fn history(&self, after: u64) -> Result<Vec<(&'static Kind, Change)>, Unknown> {
        self.with_store(|store| store.history(after))
    }

    /// All objects as they are now.
    pub fn backup(&self) -> Backup {
        self.with_store(|store| store.backup())
    }

    /// Restarts on a restored etcd: see [`Store::restore`].
    pub fn restore(&self, backup: &Backup, bump: u64) {
        self.with_store(|store| store.restore(backup, bump));
    }

    /// Forgets the history: watches and pages from before now get 410.
    pub fn compact(&self) {
        self.with_store(Store::compact);
    }

    /// Puts an object there as it was at an earlier revision, which no watch tells of: of a server before this one that has
    /// objects that this one has yet to be told of.
    pub fn adopt(&self, kind: &Kind, key: &str, value: Value, revision: u64) {
        self.with_store(|store| store.adopt(kind, key, value, revision));
    }

    /// What time it is here.
    pub fn clock(&self) -> &Clock {
        &self.inner.clock
    }

    /// Who is known to reviews.
    pub fn reviews(&self) -> &Reviews {
        &self.inner.reviews
    }

    pub(super) fn with_store<T>(&self, act: impl FnOnce(&mut Store) -> T) -> T {
        self.inner.store.with(act)
    }

    /// Answers a request.
    pub async fn answer(&self, request: Request) -> Response<Body> {
        match self.route(&request).await {
            Ok(response) => response,
            Err(refusal) => refuse(&refusal),
        }
    }

    async fn route(&self, request: &Request) -> Result<Response<Body>, Refusal> {
        let path = request.path.as_str();
        if let Some(place) = Place::parse(path) {
            return self.resource(request, &place).await;
        }
        if matches!(path, reviews::TOKEN_REVIEWS | reviews::ACCESS_REVIEWS) {
            return self.review(request);
        }
        if matches!(path, "/healthz" | "/livez" | "/readyz") {
            return Ok(response(200, "text/plain; charset=utf-8", "ok"));
        }
        if path.starts_with("/api/v1/watch/") || path.contains("/v1/watch/") {
            return Err(Refusal::not_implemented("watch paths; use the parameter watch=true"));
        }
        let document = discovery::document(path, &request.accept).or_else(|| openapi::document(path));
        match document {
            Some(document) if request.method == Method::GET => {
                let media = match json::text(&document, "/kind") {
                    "APIGroupDiscoveryList" => {
                        "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
                    }
                    _ => "application/json",
                };
                Ok(response(200, media, document.to_string()))
            }
            Some(_) => Err(Refusal::method_not_allowed()),
            None if path.starts_with("/api") => Err(Refusal::no_resource()),
            None => Ok(response(404, "text/plain; charset=utf-8", "404 page not found\n")),
        }
    }

    fn review(&self, request: &Request) -> Result<Response<Body>, Refusal> {
        if request.method != Method::POST {
            return Err(Refusal::method_not_allowed());
        }
        check_media(&request.content_type)?;
        let review =
            serde_json::from_slice(&request.body).map_err(|error| Refusal::bad_request(error.to_string()))?;
        let reviewed = match request.path.as_str() {
            reviews::TOKEN_REVIEWS => self.reviews().token(review)?,
            _ => self.reviews().access(review)?,
        };
        Ok(response(201, "application/json", reviewed.to_string()))
    }

    async fn resource(&self, request: &Request, place: &Place) -> Result<Response<Body>, Refusal> {
        let kind = place.kind;
        match (kind.plural, place.subresource.as_str()) {
            (_, "") => {}
            (_, "status") if kind.has_status => {}
            ("pods", "binding") if request.method == Method::POST => return self.bind(request, place),
            ("pods", "binding") => return Err(Refusal::method_not_allowed()),
            ("pods" | "namespaces" | "nodes", subresource) if is_known_subresource(subresource) => {
                return Err(Refusal::not_implemented(&format!(
                    "the subresource {}/{subresource}",
                    kind.plural
                )));
            }
            _ => return Err(Refusal::no_resource()),
        }
        let is_collection = place.name.is_empty();
        let is_object = !is_collection && place.subresource.is_empty();
        let is_placed = !kind.namespaced || !place.namespace.is_empty();
        match request.method {
            Method::GET if is_collection => self.list(request, place).await,
            Method::GET => self.get(request, place).await,
            Method::POST if is_collection && is_placed => self.create(request, place),
            Method::PUT if !is_collection => self.put(request, place),
            Method::PATCH if !is_collection => self.patch(request, place),
            Method::DELETE if is_object => self.delete(request, place).await,
            Method::DELETE if is_collection && is_placed && kind.deletes_collections() => {
                self.delete_collection(request, place)
            }
            _ => Err(Refusal::method_not_allowed()),
        }
    }

    /// Waits until a revision exists, but not for long.
    async fn await_revision(&self, revision: u64) -> Result<(), Refusal> {
        let mut written = self.with_store(|store| store.subscribe_revision());
        match timeout(REVISION_WAIT, written.wait_for(|written| *written >= revision)).await {
            Ok(_) => Ok(()),
            Err(_) => Err(Refusal::revision_too_large(revision, self.revision())),
        }
    }

    async fn get(&self, request: &Request, place: &Place) -> Result<Response<Body>, Refusal> {
        let view = View::parse(&request.accept, &request.query)?;
        let revision = request.query.get("resourceVersion");
        if !revision.is_empty() && revision != "0" {
            let options = ListOptions::parse(place, &request.query)?;
            self.await_revision(options.revision_number()?).await?;
        }
        match self.with_store(|store| store.get(place.kind, &place.key())) {
            Some(object) => Ok(self.show(200, place.kind, &object, view, &[])),
            None => Err(Refusal::not_found(place.kind, &place.name)),
        }
    }

    async fn list(&self, request: &Request, place: &Place) -> Result<Response<Body>, Refusal> {
        let view = View::parse(&request.accept, &request.query)?;
        let options = ListOptions::parse(place, &request.query)?;
        if options.is_watch {
            if options.sends_initial == Some(true) {
                self.await_revision(options.revision_number()?).await?;
            }
            let (objects, clock) = (&self.inner.store, *self.clock());
            let told = self.told.clone();
            let watch =
                objects.with(|store| Watch::begin((objects, store), told, clock, place, options, view))?;
            return Ok(stream_response(watch));
        }
        self.await_revision(options.awaited_revision()?).await?;
        let page = self.with_store(|store| list(store, place, &options))?;
        Ok(response(200, "application/json", view.page(place.kind, &page, self.clock())))
    }

    fn create(&self, request: &Request, place: &Place) -> Result<Response<Body>, Refusal> {
        let view = View::parse(&request.accept, &request.query)?;
        let options = WriteOptions::parse(&request.query)?;
        check_media(&request.content_type)?;
        let mut warnings = Vec::new();
        let mut object = write::read(place.kind, &request.body, options, &mut warnings)?;
        let writer = writer(request, place);
        write::wipe_system_fields(&mut object);
        let object = self.with_store(|store| {
            write::place_in_namespace(place, &mut object.clone())?;
            write::create(store, self.clock(), place, object, &writer)
        })?;
        Ok(self.show(201, place.kind, &object, view, &warnings))
    }

    fn put(&self, request: &Request, place: &Place) -> Result<Response<Body>, Refusal> {
        let view = View::parse(&request.accept, &request.query)?;
        let options = WriteOptions::parse(&request.query)?;
        check_media(&request.content_type)?;
        let mut warnings = Vec::new();
        let object = write::read(place.kind, &request.body, options, &mut warnings)?;
        let writer = writer(request, place);
        let written = self.with_store(|store| write::put(store, self.clock(), place, object, &writer))?;
        let code = if written.is_new { 201 } else { 200 };
        Ok(self.show(code, place.kind, &written.object, view, &warnings))
    }

    fn patch(&self, request: &Request, place: &Place) -> Result<Response<Body>, Refusal> {
        let view = View::parse(&request.accept, &request.query)?;
        let patch_type = PatchType::parse(&request.content_type)?;
        let options = WriteOptions::parse(&request.query)?;
        WriteOptions::check_patch(&request.query, patch_type == PatchType::Apply)?;
        let kind = place.kind;
        let mut writer = writer(request, place);
        if patch_type == PatchType::Apply {
            writer = writer.applying(patch::applied(kind, &request.body)?);
        }
        let mut warnings = Vec::new();
        let (code, object) = self.with_store(|store| {
            let Some(old) = store.get(kind, &place.key()) else {
                if patch_type != PatchType::Apply || !place.subresource.is_empty() {
                    return Err(Refusal::not_found(kind, &place.name));
                }
                let applied = patch::applied(kind, &request.body)?;
                let text = serde_json::to_vec(&applied).unwrap_or_default();
                let object = write::read(kind, &text, options, &mut warnings)?;
                if !json::text(&object, "/metadata/uid").is_empty() {
                    let detail = "uid mismatch: the object has a uid, and no existing object was found";
                    return Err(Refusal::conflict(kind, &place.name, detail));
                }
                write::check_name(place, &object)?;
                return Ok((201, write::create(store, self.clock(), place, object, &writer)?));
            };
            let patched = patch::apply(kind, patch_type, &typed(kind, &old.value), &request.body)?;
            if json::text(&patched, "/kind") != kind.kind
                || json::text(&patched, "/apiVersion") != kind.api_version()
            {
                return Err(Refusal::bad_request("a patch cannot change kind or apiVersion"));
            }
            let new = write::shape(kind, patched, options, &mut warnings)
                .map_err(|detail| patch::misshapen(&detail))?;
            write::check_name(place, &new)?;
            Ok((200, write::replace(store, self.clock(), place, &old, new, &writer)?))
        })?;
        Ok(self.show(code, kind, &object, view, &warnings))
    }

    fn bind(&self, request: &Request, place: &Place) -> Result<Response<Body>, Refusal> {
        WriteOptions::parse(&request.query)?;
        check_media(&request.content_type)?;
        let binding: Value =
            serde_json::from_slice(&request.body).map_err(|error| Refusal::bad_request(error.to_string()))?;
        self.with_store(|store| write::bind(store, self.clock(), place, &binding))?;
        Ok(response(201, "application/json", success(None).to_string()))
    }

    /// Other requests come between the read of an object that nothing holds and its removal, as on the real server.
    async fn delete(&self, request: &Request, place: &Place) -> Result<Response<Body>, Refusal> {
        let view = View::parse(&request.accept, &request.query)?;
        let options = DeleteOptions::parse(&request.body, &request.query)?;
        let deletion = match self.with_store(|store| delete::begin(store, self.clock(), place, &options))? {
            Progress::Done(deletion) => deletion,
            Progress::Removes(read) => {
                yield_now().await;
                self.with_store(|store| delete::remove(store, place, &options, &read))?
            }
        };
        match deletion {
            Deletion::Object(object) => Ok(self.show(200, place.kind, &object, view, &[])),
            Deletion::Status(status) => Ok(response(200, "application/json", status.to_string())),
        }
    }

    fn delete_collection(&self, request: &Request, place: &Place) -> Result<Response<Body>, Refusal> {
        let view = View::parse(&request.accept, &request.query)?;
        let options = DeleteOptions::parse(&request.body, &request.query)?;
        let selection = ListOptions::parse(place, &request.query)?;
        let page = self.with_store(|store| {
            let page = list(store, place, &selection)?;
            for object in &page.items {
                let mut place = place.clone();
                json::text(&object.value, "/metadata/name").clone_into(&mut place.name);
                delete::delete(store, self.clock(), &place, &options)?;
            }
            Ok::<_, Refusal>(page)
        })?;
        Ok(response(200, "application/json", view.page(place.kind, &page, self.clock())))
    }

    fn show(
        &self,
        code: u16,
        kind: &Kind,
        object: &Arc<Object>,
        view: View,
        warnings: &[String],
    ) -> Response<Body> {
        let body = match view {
            View::Object => {
                let mut text = Vec::new();
                object.write_typed(kind, &mut text);
                text
            }
            _ => view.one(kind, object, self.clock()).to_string().into_bytes(),
        };
        let mut response = response(code, "application/json", body);
        for warning in warnings {
            let text = format!("299 - {}", Value::from(warning.as_str()));
            if let Ok(text) = HeaderValue::from_str(&text) {
                response.headers_mut().append(header::WARNING, text);
            }
        }
        response
    }
}

fn writer(request: &Request, place: &Place) -> Writer {
    Writer::of(&request.query, &request.user_agent, &place.subresource)
}

/// Subresources that Kubernetes has and this server has not.
fn is_known_subresource(name: &str) -> bool {
    ["attach", "ephemeralcontainers", "eviction", "exec", "finalize", "log", "portforward", "proxy", "resize"]
        .contains(&name)
}

fn check_media(content_type: &str) -> Result<(), Refusal> {
    match content_type.split(';').next().unwrap_or_default().trim() {
        "" | "application/json" => Ok(()),
        media @ ("application/yaml" | "application/vnd.kubernetes.protobuf" | "application/cbor") => {
            Err(Refusal::not_implemented(&format!("bodies of type {media}")))
        }
        _ => Err(Refusal::plain(
            415,
            "UnsupportedMediaType",
            "the body of the request was in an unknown format - accepted media types include: application/json",
        )),
    }
}

fn refuse(refusal: &Refusal) -> Response<Body> {
    let mut response = response(refusal.code(), "application/json", refusal.body().to_string());
    if let Some(seconds) = refusal.retry_after() {
        response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
    }
    response
}

fn response(code: u16, media: &'static str, body: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(Full::new(body.into()).boxed_unsync());
    *response.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(media));
    response
}

fn stream_response(watch: Watch) -> Response<Body> {
    let lines = stream::unfold(watch, |mut watch| async move {
        let line = watch.next().await?;
        Some((Ok::<_, Infallible>(Frame::data(line)), watch))
    });
    let mut response = Response::new(StreamBody::new(lines).boxed_unsync());
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

impl<B> tower::Service<http::Request<B>> for Server
where
    B: hyper::body::Body + Send + 'static,
    B::Data: Send,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let server = self.clone();
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let header = |name| {
                let value = parts.headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
                value.unwrap_or_default().to_owned()
            };
            let Ok(body) = body.collect().await.map(http_body_util::Collected::to_bytes) else {
                return Ok(refuse(&Refusal::bad_request("the body ended early")));
            };
            let request = Request {
                path: parts.uri.path().to_owned(),
                query: Query::parse(parts.uri.query().unwrap_or_default()),
                accept: header(header::ACCEPT),
                content_type: header(header::CONTENT_TYPE),
                user_agent: header(header::USER_AGENT),
                method: parts.method,
                body,
            };
            Ok(server.answer(request).await)
        })
    }
}
