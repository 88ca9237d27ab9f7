//! One answer after another, as server-sent events.
//!
//! In: a subject and one who may ask about it. Out: an event when the watch begins, and one whenever the answer changes. Once a
//! second it is seen, without making the answer anew, whether something that it was made from has changed; it is made anew
//! then, and with each heartbeat. It ends when this one may no longer ask, when another replica comes to decide, with the
//! daemon, and after ten minutes: who still wants to know asks again, and shows anew who it is.

use std::{sync::Arc, time::Duration};

use hyper::body::Bytes;
use serde_json::json;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep},
};

use super::{
    answers::{Trouble, etag_of, object, protect},
    desk::Desk,
    places::Place,
};
use crate::{
    explain::subject::Subject,
    http::{Rights, Sent},
};

/// How long one watch lasts.
const LONGEST: Duration = Duration::from_mins(10);
/// How often it is seen whether something has changed.
const LOOK: Duration = Duration::from_secs(1);
/// A word is sent at least so often: proxies take a connection for dead after a minute, some of them after half of one.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// Events that the reader has not taken yet. A reader who is slower misses none, but gets the later ones later.
const AHEAD: usize = 1;

/// Begins a watch.
pub(super) fn begin(desk: Arc<Desk>, subject: Subject, rights: Rights, place: Place) -> Sent {
    let (sender, receiver) = mpsc::channel(AHEAD);
    tokio::spawn(async move {
        let ended = desk.knowledge().stopping.clone();
        let telling = tell(&desk, &subject, &rights, &sender);
        let why = tokio::select! {
            () = ended.cancelled() => Some("the daemon ends"),
            () = sleep(LONGEST) => Some("the time of a watch is over"),
            why = telling => why,
        };
        if let Some(why) = why {
            // One who does not take it sees the end of the connection.
            let _ = sender.try_send(event("end", None, &json!({ "why": why }).to_string()));
        }
        drop(place);
    });
    let mut headers = http::HeaderMap::new();
    protect(&mut headers);
    // A little later than the watch ends by itself.
    Sent::stream("text/event-stream", receiver, LONGEST + HEARTBEAT).with_headers(headers)
}

/// Tells until there is nothing more to tell. Returns why, if there is anyone to hear it.
async fn tell(
    desk: &Desk,
    subject: &Subject,
    rights: &Rights,
    sender: &mpsc::Sender<Bytes>,
) -> Option<&'static str> {
    let knowledge = desk.knowledge();
    let mut election = knowledge.election.clone();
    let led = knowledge.leads();
    let mut told = String::new();
    loop {
        let made = Instant::now();
        let answer = match object(desk, subject, rights).await {
            Ok((_, None)) => return Some("you may no longer get the object"),
            Ok((explanation, answer)) => {
                let etag = etag_of(&explanation);
                let text = if etag == told {
                    Bytes::from_static(b": nothing has changed\n\n")
                } else {
                    let json = serde_json::to_string(&explanation).unwrap_or_default();
                    event("explanation", Some(&etag), &json)
                };
                told = etag;
                sender.send(text).await.ok()?;
                answer
            }
            // There was no time for it.
            Err(Trouble::Busy) => None,
            Err(Trouble::Denied(_)) => return Some("it cannot be told now what you may see"),
        };
        while made.elapsed() < HEARTBEAT {
            tokio::select! {
                () = sender.closed() => return None,
                () = sleep(LOOK) => {}
                () = another_leads(&mut election, led) => return Some("another replica decides now"),
            }
            if !answer.as_ref().is_some_and(|answer| answer.signs.hold(knowledge)) {
                break;
            }
        }
    }
}

/// Waits until this replica comes to decide, or no longer does.
async fn another_leads(
    election: &mut Option<tokio::sync::watch::Receiver<crate::kube_api::elector::ElectionView>>,
    led: bool,
) {
    let Some(view) = election else { return std::future::pending().await };
    if view.wait_for(|view| view.leading != led).await.is_err() {
        std::future::pending::<()>().await;
    }
}

fn event(name: &str, id: Option<&str>, data: &str) -> Bytes {
    let id = id.map(|id| format!("id: {id}\n")).unwrap_or_default();
    // JSON has no line breaks.
    format!("{id}event: {name}\ndata: {data}\n\n").into()
}
