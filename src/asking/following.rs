//! A daemon's answers about an object, one after another, as its server-sent events bring them.
//!
//! In: a daemon, and what is asked about. Out: the next answer that is not the one before; or a line, and then the cluster is read.
//! An event has the whole answer, and so nothing is missed between a connection that ends and the next one. A lost
//! connection is said once and opened anew with pauses; one that ends in order is opened anew without a word.

use std::time::Duration;

use http::{StatusCode, header::CONTENT_TYPE};
use http_body_util::BodyExt;
use kube::client::Body;
use serde::Deserialize;
use tokio::time::{Instant, sleep, timeout};

use super::{
    PAUSE,
    daemon::{Daemon, LARGEST, PATIENCE},
};
use crate::{
    explain::{report::Explanation, subject::Subject},
    kube_api::backoff::Backoff,
};

/// A daemon says something each 15 s; one that was silent for three times as long is not there any more.
const SILENCE: Duration = Duration::from_secs(45);
/// How long a daemon may be away before the cluster is read: longer than another replica takes to lead.
const AWAY: Duration = Duration::from_secs(30);
/// Longest pause between attempts.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// A daemon that is followed.
pub(super) struct Following {
    daemon: Daemon,
    subject: Subject,
    /// Says a line to the person who follows.
    say: Box<dyn FnMut(&str) + Send>,
    events: Option<Events>,
    /// The last answer's name.
    known: Option<String>,
    pauses: Backoff,
    /// When the connection was lost.
    lost: Option<Instant>,
    has_said: bool,
}

impl Following {
    /// Begins with nothing. Nothing is asked yet.
    pub(super) fn new(daemon: Daemon, subject: Subject, say: Box<dyn FnMut(&str) + Send>) -> Self {
        let pauses = Backoff::new(LONGEST_PAUSE);
        Self { daemon, subject, say, events: None, known: None, pauses, lost: None, has_said: false }
    }

    /// An answer, without those that follow.
    pub(super) async fn once(&self) -> Result<Explanation, String> {
        let answer = self.daemon.ask(&self.subject).await;
        answer.map(|(_, explanation)| explanation).map_err(|why| self.daemon.gives_none(&why))
    }

    /// The next answer that is new.
    pub(super) async fn next(&mut self) -> Result<Explanation, String> {
        loop {
            let Some(events) = &mut self.events else {
                if let Some(explanation) = self.open().await? {
                    return Ok(explanation);
                }
                continue;
            };
            let had_told = events.has_told;
            match events.next().await {
                Ok(Event::End) => {
                    self.events = None;
                    sleep(self.pauses.pause()).await;
                }
                Ok(event) => {
                    // A connection that ends after its first word is no reason to be quicker with the next.
                    if had_told {
                        self.pauses = Backoff::new(LONGEST_PAUSE);
                        self.has_said = false;
                    }
                    self.lost = None;
                    if let Event::Explanation(name, explanation) = event
                        && self.is_new(name)
                    {
                        return Ok(*explanation);
                    }
                }
                Err(why) => self.lose(why).await?,
            }
        }
    }

    fn is_new(&mut self, name: String) -> bool {
        let name = Some(name);
        let is_new = self.known != name;
        self.known = name;
        is_new
    }

    /// Opens a connection; or gives the answer of a daemon that tells nothing bit by bit.
    async fn open(&mut self) -> Result<Option<Explanation>, String> {
        let answer = match self.daemon.watch(&self.subject).await {
            Ok(answer) => answer,
            Err(why) => return self.lose(why).await.map(|()| None),
        };
        let is_stream = answer
            .headers()
            .get(CONTENT_TYPE)
            .is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
        match answer.status() {
            StatusCode::OK if is_stream => {
                self.events = Some(Events::of(answer.into_body()));
                Ok(None)
            }
            // There are so many watches already. And one who may not get the object may be allowed to later.
            StatusCode::TOO_MANY_REQUESTS | StatusCode::FORBIDDEN => {
                if self.known.is_some() {
                    sleep(PAUSE.max(self.pauses.pause())).await;
                }
                match self.daemon.ask(&self.subject).await {
                    Ok((name, explanation)) => {
                        self.lost = None;
                        Ok(self.is_new(name).then_some(explanation))
                    }
                    Err(why) => self.lose(why).await.map(|()| None),
                }
            }
            StatusCode::OK => self.lose("200 OK, and no events".to_owned()).await.map(|()| None),
            status => self.lose(status.to_string()).await.map(|()| None),
        }
    }

    /// The connection is lost, or cannot be opened: waits, or gives up.
    async fn lose(&mut self, why: String) -> Result<(), String> {
        self.events = None;
        let lost = *self.lost.get_or_insert_with(Instant::now);
        // One that never answered is not waited for.
        if self.known.is_none() || lost.elapsed() >= AWAY {
            return Err(self.daemon.gives_none(&why));
        }
        if !self.has_said {
            let url = self.daemon.url();
            (self.say)(&format!("the connection to the daemon {url} is lost: {why}; it is opened anew"));
            self.has_said = true;
        }
        sleep(self.pauses.pause()).await;
        Ok(())
    }
}

/// What a daemon sends.
#[derive(Debug)]
enum Event {
    /// It is there, and nothing has changed.
    Word,
    /// An answer, with its name.
    Explanation(String, Box<Explanation>),
    /// It ends in order.
    End,
}

#[derive(Deserialize)]
struct Ends {
    why: String,
}

/// Server-sent events as they come.
struct Events {
    body: Body,
    begun: Vec<u8>,
    has_told: bool,
}

impl Events {
    fn of(body: Body) -> Self {
        Self { body, begun: Vec::new(), has_told: false }
    }

    /// The next one, or why there is none.
    async fn next(&mut self) -> Result<Event, String> {
        loop {
            if let Some(end) = self.begun.windows(2).position(|pair| pair == b"\n\n") {
                let text: Vec<u8> = self.begun.drain(..end + 2).collect();
                let event = self.parse(&text)?;
                self.has_told |= matches!(event, Event::Explanation(..));
                return Ok(event);
            }
            let patience = if self.has_told { SILENCE } else { PATIENCE };
            let frame = timeout(patience, self.body.frame()).await;
            let frame = frame.map_err(|_| format!("it was silent for {} s", patience.as_secs()))?;
            let frame = frame.ok_or_else(|| "it has ended".to_owned())?;
            let frame = frame.map_err(|error| error.to_string())?;
            self.begun.extend_from_slice(frame.data_ref().map(AsRef::as_ref).unwrap_or_default());
            if self.begun.len() > LARGEST {
                return Err("an answer is too large".to_owned());
            }
        }
    }

    fn parse(&self, text: &[u8]) -> Result<Event, String> {
        let text = std::str::from_utf8(text).map_err(|error| error.to_string())?;
        let field = |name: &str| {
            let of =
                |line: &'_ str| line.strip_prefix(name)?.strip_prefix(':').map(str::trim).map(str::to_owned);
            text.lines().find_map(of).unwrap_or_default()
        };
        match field("event").as_str() {
            "explanation" => {
                let explanation = serde_json::from_str(&field("data")).map_err(|error| error.to_string())?;
                Ok(Event::Explanation(field("id"), Box::new(explanation)))
            }
            // One that ends before it has told anything is not to be asked again and again without a word.
            "end" if !self.has_told => {
                let ends: Ends = serde_json::from_str(&field("data")).map_err(|error| error.to_string())?;
                Err(ends.why)
            }
            "end" => Ok(Event::End),
            _ => Ok(Event::Word),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::VecDeque,
        convert::Infallible,
        sync::{Arc, Mutex},
    };

    use futures::stream;
    use http::{Request, Response};
    use http_body_util::{Full, StreamBody, combinators::UnsyncBoxBody};
    use hyper::body::{Bytes, Frame};
    use kube::Client;
    use serde_json::json;

    use super::*;

    /// One answer of a daemon: after how many seconds each piece of it comes, and whether it ends then.
    enum Sent {
        Events(Vec<(u64, String)>, bool),
        Whole(u16, String),
        Nothing,
    }

    fn explanation(reason: &str) -> String {
        json!({
            "subject": {}, "headline": "", "verdict": "Waiting", "reason": reason, "summary": "", "steps": [],
            "observed": { "resourceVersion": null, "at": "2026-01-01T00:00:00Z", "source": "daemon", "leader": null },
            "candidates": [], "evidence": [], "timeline": [], "actions": [], "unseen": [], "unknown": [], "redacted": 0,
        })
        .to_string()
    }

    fn told(reason: &str) -> String {
        format!("id: W/\"{reason}\"\nevent: explanation\ndata: {}\n\n", explanation(reason))
    }

    fn end(why: &str) -> String {
        format!("event: end\ndata: {}\n\n", json!({ "why": why }))
    }

    const WORD: &str = ": nothing has changed\n\n";

    /// Follows a daemon that gives these answers. What is asked for, and what is said, is written down.
    fn following(sent: Vec<Sent>) -> (Following, Arc<Mutex<Vec<String>>>) {
        let record: Arc<Mutex<Vec<String>>> = Arc::default();
        let (asked, said) = (Arc::clone(&record), Arc::clone(&record));
        let sent = Arc::new(Mutex::new(VecDeque::from(sent)));
        let service = tower::service_fn(move |request: Request<Body>| {
            asked.lock().unwrap().push(request.uri().to_string());
            let next = sent.lock().unwrap().pop_front();
            async move {
                let answer = Response::builder();
                let body = match next {
                    Some(Sent::Events(pieces, ends)) => {
                        let pieces = stream::unfold(VecDeque::from(pieces), move |mut pieces| async move {
                            let Some((after, text)) = pieces.pop_front() else {
                                if !ends {
                                    std::future::pending::<()>().await;
                                }
                                return None;
                            };
                            sleep(Duration::from_secs(after)).await;
                            Some((Ok::<_, Infallible>(Frame::data(Bytes::from(text))), pieces))
                        });
                        let body = UnsyncBoxBody::new(StreamBody::new(pieces));
                        return Ok(answer.header(CONTENT_TYPE, "text/event-stream").body(body).unwrap());
                    }
                    Some(Sent::Whole(status, body)) => (status, body),
                    Some(Sent::Nothing) | None => return Err(std::io::Error::other("nobody is there")),
                };
                let (status, body) = body;
                let body = UnsyncBoxBody::new(Full::from(body));
                Ok(answer.status(status).header("etag", "W/\"whole\"").body(body).unwrap())
            }
        });
        let daemon = Daemon::of(Client::new(service, "default"), "https://daemon");
        let subject = Subject::parse(&["node/n"], "").unwrap();
        let say = Box::new(move |line: &str| said.lock().unwrap().push(format!("> {line}")));
        (Following::new(daemon, subject, say), record)
    }

    async fn reasons(following: &mut Following, count: usize) -> Vec<String> {
        let mut reasons = Vec::new();
        for _ in 0..count {
            reasons.push(following.next().await.unwrap().reason);
        }
        reasons
    }

    const WATCH: &str = "/explain/v1/nodes/n?watch=1";

    #[tokio::test(start_paused = true)]
    async fn answers_come_when_they_change_over_one_connection_however_long_it_lasts() {
        let first = told("A");
        let (one, other) = first.split_at(40);
        let mut pieces = vec![(0, one.to_owned()), (1, other.to_owned())];
        pieces.extend((0..30).map(|_| (15, WORD.to_owned())));
        pieces.push((15, told("B") + WORD + &told("C")));
        let (mut following, record) = following(vec![Sent::Events(pieces, false)]);
        let begun = Instant::now();
        assert_eq!(reasons(&mut following, 3).await, ["A", "B", "C"]);
        assert!(begun.elapsed() > Duration::from_mins(7));
        assert_eq!(*record.lock().unwrap(), [WATCH]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_lost_connection_is_opened_anew_and_that_is_said_once() {
        let lost = vec![(0, told("A")), (15, WORD.to_owned())];
        let sent = vec![
            Sent::Events(lost.clone(), true),
            Sent::Nothing,
            Sent::Whole(503, "busy".to_owned()),
            // What is known is not told again. And after a word that follows, a loss is a new one.
            Sent::Events(vec![(0, told("A")), (15, told("B"))], true),
            Sent::Nothing,
            Sent::Events(vec![(0, told("C"))], true),
            Sent::Events(vec![(0, told("D"))], false),
        ];
        let (mut following, record) = following(sent);
        assert_eq!(reasons(&mut following, 4).await, ["A", "B", "C", "D"]);
        let line = "> the connection to the daemon https://daemon is lost: it has ended; it is opened anew";
        assert_eq!(
            *record.lock().unwrap(),
            [WATCH, line, WATCH, WATCH, WATCH, line, WATCH, WATCH, WATCH],
            "what follows the loss of a connection that has told one thing only belongs to the same loss"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_ends_in_order_is_opened_anew_without_a_word() {
        let ends = |reason: &str| {
            Sent::Events(vec![(0, told(reason)), (1, end("the time of a watch is over"))], true)
        };
        let (mut following, record) = following(vec![ends("A"), ends("A"), ends("B")]);
        assert_eq!(reasons(&mut following, 2).await, ["A", "B"]);
        assert_eq!(*record.lock().unwrap(), [WATCH; 3]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_daemon_that_is_silent_or_away_for_long_is_given_up() {
        // Silent, then away.
        let (mut following, record) = following(vec![Sent::Events(vec![(0, told("A"))], false)]);
        assert_eq!(reasons(&mut following, 1).await, ["A"]);
        let begun = Instant::now();
        let why = following.next().await.unwrap_err();
        assert!(
            why.starts_with("the daemon https://daemon gives no answer: ") && why.contains("nobody is there"),
            "{why}"
        );
        let lasted = begun.elapsed();
        assert!(lasted >= SILENCE + AWAY && lasted <= SILENCE + AWAY + LONGEST_PAUSE, "{lasted:?}");
        let record = record.lock().unwrap();
        let said: Vec<&String> = record.iter().filter(|line| line.starts_with('>')).collect();
        assert!(said.len() == 1 && said[0].contains("silent for 45 s"), "{record:?}");
        assert!((6..=12).contains(&(record.len() - said.len())), "with pauses that grow: {record:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_never_answers_is_not_waited_for() {
        let stopping = Sent::Events(vec![(0, end("the daemon ends"))], true);
        let large = Sent::Events(vec![(0, "x".repeat(LARGEST + 1))], false);
        let unauthorized = Sent::Whole(401, String::new());
        let plain = Sent::Whole(200, explanation("A"));
        let silent = Sent::Events(Vec::new(), false);
        for (sent, expected) in [
            (Sent::Nothing, "nobody is there"),
            (stopping, "the daemon ends"),
            (large, "too large"),
            (unauthorized, "401"),
            (plain, "200 OK, and no events"),
            (silent, "silent for 10 s"),
        ] {
            let (mut following, record) = following(vec![sent]);
            let why = following.next().await.unwrap_err();
            assert!(why.contains(expected), "{expected}: {why}");
            assert_eq!(*record.lock().unwrap(), [WATCH], "{expected}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn where_there_are_too_many_watches_or_no_right_it_is_asked_again_and_again() {
        let one = "/explain/v1/nodes/n";
        let sent = vec![
            Sent::Whole(429, "too many watches".to_owned()),
            Sent::Whole(200, explanation("A")),
            Sent::Whole(429, "too many watches".to_owned()),
            Sent::Whole(200, explanation("A")),
            Sent::Whole(403, String::new()),
            Sent::Whole(403, explanation("A")),
            Sent::Events(vec![(0, told("B"))], false),
        ];
        let (mut following, record) = following(sent);
        let begun = Instant::now();
        assert_eq!(reasons(&mut following, 2).await, ["A", "B"]);
        assert!(begun.elapsed() >= 2 * PAUSE);
        assert_eq!(*record.lock().unwrap(), [WATCH, one, WATCH, one, WATCH, one, WATCH]);
    }
}
