//! The body of a write is kept back until the server has begun with the request (S37, E9).
//!
//! In: a request with a [`Gate`] among its extensions. Out: the same with `Expect: 100-continue`, and a body
//! that the connection gets to see only when the server has said so and [`super::deadline`] lets it go. Without
//! its body no write can be carried out, however late its head arrives; and with it the server's own clock is
//! known to have begun. A proxy that answers for the server takes this away, and so does one that swallows the answer, once
//! [`super::overdue`] has found that out; then only the time-outs are left, and a gate that is open only asks.
//!
//! [`Gated`] belongs below the client's other layers, above the connections. Where it is missing (a server in
//! this process) nothing is kept back.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use http::{HeaderValue, Request, StatusCode, header::EXPECT};
use hyper::body::{Body as HttpBody, Bytes, Frame, SizeHint};
use kube::client::Body;
use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};
use tower::BoxError;

use super::deadline::left;
use crate::leadership::{Landing, Leadership, Term};

/// How far a write has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Its body is not kept back: there is no [`Gated`] below.
    Unguarded,
    /// The server has not begun yet.
    Kept,
    /// It has, but too little is left of the lease.
    Begun,
    /// The body has been let go.
    Open,
    /// It never will be.
    Shut,
}

/// Why a body never left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kept {
    /// There is no sign that the server had begun.
    NotBegun,
    /// It had, but the lease was not renewed in time, or lost.
    ForTheLease,
}

/// Keeps back the body of one write.
pub struct Gate {
    leadership: Leadership,
    landing: Landing,
    server_time: Duration,
    /// Whether it keeps the body back, or only asks whether the server has begun.
    keeps: bool,
    state: Mutex<State>,
    changed: Notify,
}

struct State {
    stage: Stage,
    /// Whether the server has begun with the write.
    has_begun: bool,
    body: Option<Waker>,
}

/// What a client finds among the extensions of a write.
#[derive(Clone)]
struct Extension(Arc<Gate>);

impl Gate {
    /// A gate for a write over which the server may take so long, which `keeps` its body back.
    pub(super) fn new(leadership: Leadership, server_time: Duration, keeps: bool) -> Arc<Self> {
        let landing = leadership.landing();
        // Unless a proxy keeps it back: it may arrive just before we give up waiting.
        landing.leaves(Instant::now() + server_time + server_time);
        let state = Mutex::new(State { stage: Stage::Unguarded, has_begun: false, body: None });
        Arc::new(Self { leadership, landing, server_time, keeps, state, changed: Notify::new() })
    }

    /// Puts the gate before a request.
    pub(super) fn guard(self: &Arc<Self>, request: &mut Request<Body>) {
        request.extensions_mut().insert(Extension(Arc::clone(self)));
    }

    /// Lets the body go when the server has begun and the lease allows it; returns when that is decided.
    pub(super) async fn decide(&self) {
        let mut terms = self.leadership.terms();
        loop {
            let changed = self.changed.notified();
            let end = match self.leadership.term() {
                Term::Until(deadline) => Some(deadline),
                Term::None | Term::Unlimited => None,
            };
            let stage = {
                let mut state = self.state.lock();
                if state.stage == Stage::Begun {
                    self.judge(&mut state);
                }
                state.stage
            };
            match stage {
                Stage::Open | Stage::Shut => return,
                Stage::Unguarded | Stage::Kept | Stage::Begun => {}
            }
            tokio::select! {
                () = changed => {}
                _ = terms.changed() => {}
                () = sleep_until(end.unwrap_or_else(Instant::now)), if end.is_some() && stage == Stage::Begun => {}
            }
        }
    }

    /// Whether the server has begun with the write.
    pub(super) fn has_begun(&self) -> bool {
        self.state.lock().has_begun
    }

    /// Shuts the gate, if the body is still behind it. Returns why it was, and then it never leaves.
    pub(super) fn shut(&self) -> Option<Kept> {
        let mut state = self.state.lock();
        let kept = match state.stage {
            Stage::Unguarded | Stage::Open => return None,
            Stage::Kept => Kept::NotBegun,
            Stage::Begun | Stage::Shut => Kept::ForTheLease,
        };
        Self::set(&mut state, Stage::Shut);
        Some(kept)
    }

    /// The outcome of the write is known.
    pub(super) fn landed(&self) {
        self.landing.landed();
    }

    fn begin(&self) {
        let mut state = self.state.lock();
        state.has_begun = true;
        if state.stage == Stage::Kept {
            state.stage = Stage::Begun;
            self.judge(&mut state);
            drop(state);
            self.changed.notify_one();
        }
    }

    fn judge(&self, state: &mut State) {
        let now = Instant::now();
        // Told first and judged then: the elector ends the term first and asks then what may still land. The other
        // way round both could look before the other has said anything, and the lease be given up under the write.
        self.landing.leaves(now + self.server_time);
        match left(self.leadership.term(), self.leadership.reserve(), now) {
            Some(left) if self.server_time <= left => return Self::set(state, Stage::Open),
            Some(_) => {}
            None => Self::set(state, Stage::Shut),
        }
        self.landing.landed();
    }

    fn set(state: &mut State, reached: Stage) {
        state.stage = reached;
        if let Some(body) = state.body.take() {
            body.wake();
        }
    }
}

/// A request body that may be behind a gate.
pub struct Gated {
    body: Body,
    gate: Option<Arc<Gate>>,
}

impl Gated {
    /// Prepares a request for the connection: one with a gate and a body is kept back.
    pub fn request(mut request: Request<Body>) -> Request<Self> {
        let gate = request.extensions_mut().remove::<Extension>().map(|extension| extension.0);
        let gate = gate.filter(|_| !request.body().is_end_stream());
        if let Some(gate) = &gate {
            if gate.keeps {
                gate.state.lock().stage = Stage::Kept;
                gate.landing.landed();
            }
            request.headers_mut().insert(EXPECT, HeaderValue::from_static("100-continue"));
            let gate = Arc::clone(gate);
            hyper::ext::on_informational(&mut request, move |answer| {
                if answer.status() == StatusCode::CONTINUE {
                    gate.begin();
                }
            });
        }
        request.map(|body| Self { body, gate })
    }
}

impl HttpBody for Gated {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Some(gate) = &self.gate {
            let mut state = gate.state.lock();
            match state.stage {
                Stage::Open | Stage::Unguarded => {}
                Stage::Kept | Stage::Begun => {
                    state.body = Some(cx.waker().clone());
                    return Poll::Pending;
                }
                Stage::Shut => {
                    return Poll::Ready(Some(Err("the write was given up before it was sent".into())));
                }
            }
        }
        Pin::new(&mut self.body).poll_frame(cx).map_err(Into::into)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
