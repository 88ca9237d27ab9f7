//! `mooring explain --serve`: the page of the one who asks, over what this one may read.
//!
//! In: a port and a connection. Out: the page's address on stdout, and answers until it is interrupted. Each view is read
//! anew from the API server, one at a time, and what waits is looked at again at most every few seconds. [`ServedPage`] is the same
//! for a program that has a cluster of its own.

use std::{io, time::Duration};

use apiserver::{connect::ApiServer, ids::NodeName};
use futures::FutureExt;
use tokio::{signal::ctrl_c, sync::Mutex, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{
    connection::Connection,
    output::{QueryStop, UNREACHABLE, USAGE, print, program},
};
use crate::{
    cli::query::ExplainArgs,
    explain::{
        assumptions::Assumptions,
        doctor::{Findings, doctor},
        drain::{DrainView, drain},
        explain,
        page::{
            serve::PagePlace,
            source::{PageAnswer, PageSource},
        },
        read::{Question, Reader},
        report::{Explanation, Verdict},
        subject::Subject,
    },
};

/// How long what waits counts as just looked at: a whole cluster is read for it.
const FRESH: Duration = Duration::from_secs(5);

/// Serves until it is interrupted.
pub(super) async fn serve(args: &ExplainArgs, port: u16) -> Result<Verdict, QueryStop> {
    let Connection { reader, namespace, .. } = Connection::new(&args.view.connection).await?;
    let place = PagePlace::take(port).await;
    let place = place.map_err(|error| QueryStop(USAGE, format!("--serve={port}: {error}")))?;
    if !print(&format!("{}\n", place.url())) {
        return Err(QueryStop(UNREACHABLE, "stdout is closed: nobody can read the address".to_owned()));
    }
    let stop = CancellationToken::new();
    let of = args.view.connection.namespace.clone();
    let source = Reads { reader, namespace, of, assumptions: Assumptions::default(), last: Mutex::new(None) };
    let serving = place.serve(source, stop.clone());
    let interrupted = async {
        // Without signals it is served until the process ends.
        if ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
        stop.cancel();
    };
    tokio::join!(serving, interrupted);
    Ok(Verdict::Healthy)
}

/// A page over an API server.
pub struct ServedPage {
    place: PagePlace,
    source: Reads,
}

impl ServedPage {
    /// One on any free port of the loopback address. The controllers of that cluster are known.
    ///
    /// # Errors
    /// There is no port or no secret for it, or nothing to connect with.
    pub async fn over(api: &ApiServer, assumptions: Assumptions) -> io::Result<Self> {
        let reader = Reader::new(api, None).map_err(io::Error::other)?;
        let namespace = api.default_namespace().to_owned();
        let source = Reads { reader, namespace, of: None, assumptions, last: Mutex::new(None) };
        Ok(Self { place: PagePlace::take(0).await?, source })
    }

    /// What is told to the one who may read it.
    #[must_use]
    pub fn url(&self) -> String {
        self.place.url()
    }

    /// Answers until it is told to stop.
    pub async fn serve(self, stop: CancellationToken) {
        self.place.serve(self.source, stop).await;
    }
}

/// Reads with the user's own rights.
struct Reads {
    reader: Reader,
    assumptions: Assumptions,
    /// What is read of who may not see all.
    namespace: String,
    /// The only namespace whose waits are wanted, if one was named.
    of: Option<String>,
    last: Mutex<Option<(Instant, Findings)>>,
}

impl PageSource for Reads {
    fn program(&self) -> &'static str {
        program()
    }

    fn waiting(&self) -> PageAnswer<'_, Findings> {
        async {
            let mut last = self.last.lock().await;
            if let Some((at, findings)) = last.as_ref()
                && at.elapsed() < FRESH
            {
                return Ok(findings.clone());
            }
            let question = Question::Cluster(self.namespace.clone());
            let reading = self.reader.read(&question, &|_| {}).await.map_err(|error| error.to_string())?;
            let findings = doctor(&reading.snapshot, &self.assumptions, self.of.as_deref());
            *last = Some((Instant::now(), findings.clone()));
            Ok(findings)
        }
        .boxed()
    }

    fn explain<'a>(&'a self, subject: &'a Subject) -> PageAnswer<'a, Explanation> {
        async move {
            let reading = self
                .reader
                .read(&Question::Object(subject.clone()), &|_| {})
                .await
                .map_err(|error| error.to_string())?;
            Ok(explain(&reading.snapshot, subject, &self.assumptions))
        }
        .boxed()
    }

    fn node<'a>(&'a self, name: &'a NodeName) -> PageAnswer<'a, DrainView> {
        async move {
            let question = Question::Drain(name.clone());
            let reading = self.reader.read(&question, &|_| {}).await.map_err(|error| error.to_string())?;
            Ok(drain(&reading.snapshot, &self.assumptions, name, None))
        }
        .boxed()
    }
}
