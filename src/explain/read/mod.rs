//! The offline reader: what an answer needs of a cluster, read with the rights of the one who asks.
//!
//! In: an API server and a [`Question`]. Out: the [`Snapshot`], with what was forbidden or did not arrive in `unseen`. The
//! answer itself notes what it looks at, made of what is known by now, and [`whole`] what a question about more than one object
//! needs; [`requests`] says how it is asked for. The reader asks in rounds until nothing more is wanted. It only ever sends
//! `GET`. A part that cannot be read never ends the reading, and never stands for an object that is not there: that alone the
//! server's own "not found" does.

mod exchange;
pub(in crate::explain) mod requests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod wanted_tests;
mod whole;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use futures::{StreamExt, stream};
use http::{StatusCode, header};
use k8s_openapi::jiff::Timestamp;
use kube::{Client, client::Body};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::timeout;

use self::requests::Comes;
pub use self::{
    exchange::exchange,
    requests::Read,
    whole::{Question, needed_by},
};
use apiserver::{
    connect::ApiServer,
    ids::ResourceVersion,
    kinds::ObjectRef,
    tables::{
        Objects, Stored,
        watch::{Fetcher, Trouble, page_uri},
    },
    wire::{Encoding, ListPart, Status},
    with_kind,
};

use super::snapshot::{NOT_SERVED, Snapshot, Unseen};
use crate::metrics::{ApiMetrics, Metrics};

/// Requests under way at once: the API server's fair queues see one user.
const READS_AT_ONCE: usize = 16;
/// How long an answer may take, unless the user says otherwise. The API server itself gives up after as long.
const READ_PATIENCE: Duration = Duration::from_mins(1);
/// Objects on a page of a list: the API server looks, for each page, at all that are still to come.
const LIST_PAGE: usize = 10_000;
/// Rounds of reading: each follows references one step, and the longest chain has eight or so.
const MOST_ROUNDS: usize = 12;

/// Reads with one user's rights.
#[derive(derive_more::Debug)]
#[debug("Reader({host})")]
pub struct Reader {
    client: Client,
    fetcher: Fetcher,
    host: String,
    patience: Duration,
    /// The server's time in its latest answer.
    clock: Mutex<Option<Timestamp>>,
}

/// What came back, and is not in the tables yet: objects, whole, whether there are no more, and what of a list is told.
#[derive(Default)]
struct ReadFound {
    objects: Vec<Value>,
    is_all: bool,
    revision: Option<ResourceVersion>,
    unreadable: Vec<(ObjectRef, String)>,
}

/// Why a read has no answer.
enum ReadFailure {
    Absent,
    Unseen { why: String, forbidden: bool },
    Unauthorized(String),
    NoAnswer(String),
}

impl Reader {
    /// A reader; nothing is asked yet. An answer may take that long, without a time as long as the server allows.
    ///
    /// # Errors
    /// See [`ApiServer::client`].
    pub fn new(api: &ApiServer, patience: Option<Duration>) -> Result<Self, String> {
        let metrics = ApiMetrics::new(&Metrics::default(), &api.host()).map_err(|error| error.to_string())?;
        Ok(Self {
            client: api.client().map_err(|error| error.to_string())?,
            fetcher: Fetcher::new(api, Arc::new(metrics)).map_err(|error| error.to_string())?,
            host: api.host(),
            patience: patience.unwrap_or(READ_PATIENCE),
            clock: Mutex::new(None),
        })
    }

    /// Reads what an answer needs, in rounds, until nothing more is wanted.
    ///
    /// # Errors
    /// The API server cannot be asked at all: why.
    pub async fn read(&self, question: &Question) -> Result<Snapshot, String> {
        self.reach().await?;
        let mut snapshot = Snapshot::new(Timestamp::now());
        let mut done = BTreeSet::new();
        for round in 0.. {
            let new: Vec<Read> = needed_by(question, &snapshot).difference(&done).cloned().collect();
            if new.is_empty() {
                break;
            }
            if round == MOST_ROUNDS {
                let why = || format!("it was not read after {MOST_ROUNDS} rounds");
                let unread = |read: &Read| Unseen { what: read.to_string(), why: why(), forbidden: false };
                snapshot.unseen.extend(new.iter().map(unread));
                break;
            }
            let objects = Arc::clone(&snapshot.objects);
            let ask = |read: Read| {
                let objects = Arc::clone(&objects);
                async move {
                    let found = self.one(&read, &objects).await;
                    (read, found)
                }
            };
            let answers: Vec<_> = stream::iter(new).map(ask).buffered(READS_AT_ONCE).collect().await;
            for (read, found) in answers {
                // Credentials may expire while one reads.
                take(&mut snapshot, &read, found).map_err(|why| self.unauthorized(&why))?;
                done.insert(read);
            }
        }
        snapshot.unseen.sort();
        if let Some(time) = *self.clock.lock() {
            snapshot.taken_at = time;
        }
        Ok(snapshot)
    }

    /// The first question: is there a server? Not every user may know its version.
    async fn reach(&self) -> Result<(), String> {
        match self.json("/version").await {
            Err(ReadFailure::NoAnswer(why)) => {
                Err(format!("cannot reach the API server {}: {why}", self.host))
            }
            Err(ReadFailure::Unauthorized(why)) => Err(self.unauthorized(&why)),
            Ok(_) | Err(ReadFailure::Absent | ReadFailure::Unseen { .. }) => Ok(()),
        }
    }

    async fn one(&self, read: &Read, objects: &Objects) -> Result<ReadFound, ReadFailure> {
        let Some(path) = &read.path else { return Err(ReadFailure::Absent) };
        if let Comes::Narrow(plural, _) = &read.comes {
            return with_kind!(
                PLURAL = *plural,
                |Kind| self.list::<Kind>(path, objects).await,
                else Err(ReadFailure::Absent)
            );
        }
        let mut answer = self.json(path).await?;
        let (objects, is_all) = if let Comes::Few(..) = &read.comes {
            let is_all = answer.pointer("/metadata/continue").is_none_or(|more| more == "");
            let items = answer.get_mut("items").and_then(Value::as_array_mut).map(std::mem::take);
            (items.unwrap_or_default(), is_all)
        } else {
            (vec![answer], true)
        };
        Ok(ReadFound { objects, is_all, ..ReadFound::default() })
    }

    /// Takes a list into its table, page by page. Of a list that does not come to its end nothing is concluded.
    async fn list<T: Stored>(&self, path: &str, objects: &Objects) -> Result<ReadFound, ReadFailure> {
        let (mut listed, mut next) = (ReadFound { is_all: true, ..ReadFound::default() }, None::<String>);
        loop {
            let uri = page_uri(path, LIST_PAGE, next.as_deref());
            let mut page = self.fetcher.list(&uri, self.patience).await.map_err(failure)?;
            next = None;
            while let Some(part) = page.next(self.patience).await.map_err(failure)? {
                match part {
                    ListPart::Meta { revision, next: token } => {
                        listed.revision = Some(revision);
                        next = token;
                    }
                    ListPart::Item(item) => {
                        take_listed::<T>(page.encoding(), &item, objects, &mut listed)?;
                    }
                }
            }
            if next.is_none() {
                return Ok(listed);
            }
        }
    }

    /// An answer as JSON.
    async fn json(&self, path: &str) -> Result<Value, ReadFailure> {
        let request = http::Request::get(path).header(header::ACCEPT, "application/json").body(Body::empty());
        let request = request.map_err(|error| ReadFailure::NoAnswer(error.to_string()))?;
        let late = |_| ReadFailure::NoAnswer(format!("no answer within {:?}", self.patience));
        let answer = timeout(self.patience, exchange(&self.client, request)).await.map_err(late)?;
        let (parts, body) = answer.map_err(ReadFailure::NoAnswer)?;
        self.note_time(&parts.headers);
        if parts.status != StatusCode::OK {
            let said = Encoding::refusal(&parts.headers, &body);
            return Err(refusal(parts.status.as_u16(), said));
        }
        serde_json::from_slice(&body).map_err(|error| unseen(format!("the answer cannot be read: {error}")))
    }

    fn note_time(&self, headers: &http::HeaderMap) {
        let date = headers.get(header::DATE).and_then(|date| date.to_str().ok());
        let Some(date) = date.and_then(|date| httpdate::parse_http_date(date).ok()) else { return };
        let Ok(server) = Timestamp::try_from(date) else { return };
        let mut clock = self.clock.lock();
        *clock = clock.max(Some(server));
    }

    fn unauthorized(&self, why: &str) -> String {
        format!("the API server {} does not accept the credentials: {why}", self.host)
    }
}

/// What a refusal means. Only the API server's own word proves that an object is not there: a proxy says 404, too.
fn refusal(code: u16, said: Status) -> ReadFailure {
    let why = if said.message.is_empty() { format!("HTTP status {code}") } else { said.message };
    match code {
        404 if said.reason == "NotFound" => ReadFailure::Absent,
        401 => ReadFailure::Unauthorized(why),
        403 => ReadFailure::Unseen { why, forbidden: true },
        _ => unseen(why),
    }
}

/// A failure that is not a refusal.
fn unseen(why: String) -> ReadFailure {
    ReadFailure::Unseen { why, forbidden: false }
}

/// The same of a list.
fn failure(trouble: Trouble) -> ReadFailure {
    match trouble {
        Trouble::Refused { code, reason, message, .. } => {
            refusal(code, Status { reason, message, ..Status::default() })
        }
        Trouble::Late(_) | Trouble::Broken(_) => ReadFailure::NoAnswer(trouble.to_string()),
        _ => unseen(trouble.to_string()),
    }
}

fn take_listed<T: Stored>(
    encoding: Encoding,
    item: &bytes::Bytes,
    objects: &Objects,
    listed: &mut ReadFound,
) -> Result<(), ReadFailure> {
    match encoding.object::<T>(item) {
        Ok(object) => objects.apply(object),
        Err(error) => {
            // Without its name no one knows what it is, so the list tells nothing.
            let nameless = |error| unseen(format!("an object cannot be read: {error}"));
            let head = encoding.head(item).map_err(nameless)?;
            listed.unreadable.push((T::object_ref(head.key::<T>()), error.to_string()));
        }
    }
    Ok(())
}

/// Puts what was found into the snapshot.
///
/// # Errors
/// The server does not know who asks, in its own words.
fn take(snapshot: &mut Snapshot, read: &Read, found: Result<ReadFound, ReadFailure>) -> Result<(), String> {
    let unseen = |why: String, forbidden: bool| Unseen { what: read.to_string(), why, forbidden };
    match (found, &read.comes) {
        (Err(ReadFailure::Unauthorized(why)), _) => return Err(why),
        (Err(ReadFailure::Absent), Comes::Object(object)) => snapshot.note_absent(object.clone()),
        (Err(ReadFailure::Absent), Comes::CsiNode(node)) => snapshot.note_no_csi_node(node),
        // No object can have such a name.
        (Err(ReadFailure::Absent), _) if read.path.is_none() => {}
        (Err(ReadFailure::Absent), _) => snapshot.unseen.push(unseen(NOT_SERVED.to_owned(), false)),
        (Err(ReadFailure::Unseen { why, forbidden }), _) => snapshot.unseen.push(unseen(why, forbidden)),
        (Err(ReadFailure::NoAnswer(why)), _) => snapshot.unseen.push(unseen(why, false)),
        (Ok(ReadFound { objects, is_all, revision, unreadable }), comes) => {
            let (kind, noted) = comes.kind_and_noted();
            let wrong: Vec<_> =
                objects.into_iter().filter_map(|item| snapshot.take(named(item, kind)).err()).collect();
            if let Some(noted) = noted.filter(|_| is_all && wrong.is_empty()) {
                snapshot.note_read(noted);
            }
            snapshot.unseen.extend(wrong.into_iter().map(|error| unseen(error, false)));
            for (object, why) in unreadable {
                snapshot.note_unreadable(object.clone());
                snapshot.unseen.push(Unseen { what: object.to_string(), why, forbidden: false });
            }
            snapshot.revision = snapshot.revision.max(revision);
            let is_whole = is_all && noted == Some(kind);
            snapshot.listed_at.extend(revision.filter(|_| is_whole).map(|revision| (kind, revision)));
        }
    }
    Ok(())
}

/// With its kind, which items of a list do not say.
fn named(mut object: Value, kind: &str) -> Value {
    if let Some(fields) = object.as_object_mut() {
        fields.insert("kind".to_owned(), json!(kind));
    }
    object
}
