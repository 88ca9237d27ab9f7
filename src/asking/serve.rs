//! `mooring explain --serve`: the page of the one who asks, over what this one may read.
//!
//! In: a port and a connection. Out: the page's address on stdout, and answers until it is interrupted. Each view is read
//! anew from the API server, one at a time, and what waits is looked at again at most every few seconds. [`Page`] is the same
//! for a program that has a cluster of its own.

use std::{io, time::Duration};

use futures::FutureExt;
use tokio::{signal::ctrl_c, sync::Mutex, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{Stop, UNREACHABLE, USAGE, called::Called, print, questions::Connection};
use crate::{
    cli::asking::ExplainArgs,
    explain::{
        age::counted,
        assumptions::Assumptions,
        doctor::{Finding, Findings, Severity, doctor},
        drain::{DrainView, NodeVolume, drain},
        explain,
        page::{
            serve::Place,
            values::{Answer, Holding, Named, NodeNow, Source, Told, Trouble, WaitingNow, WaitingRow},
        },
        read::{Question, Reader, Unreachable},
        report::{Explanation, Verdict},
        subject::Subject,
        text::{Style, text},
    },
    kube_api::connect::ApiServer,
};

/// How long what waits counts as just looked at: a whole cluster is read for it.
const FRESH: Duration = Duration::from_secs(5);

/// Serves until it is interrupted.
pub(super) async fn serve(args: &ExplainArgs, port: u16) -> Result<Verdict, Stop> {
    let Connection { reader, namespace, .. } = Connection::new(&args.connection).await?;
    let place = Place::take(port).await;
    let place = place.map_err(|error| Stop(USAGE, format!("--serve={port}: {error}")))?;
    if !print(&format!("{}\n", place.url())) {
        return Err(Stop(UNREACHABLE, "stdout is closed: there is no one to tell the address".to_owned()));
    }
    let stop = CancellationToken::new();
    let of = args.connection.namespace.clone();
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
pub struct Page {
    place: Place,
    source: Reads,
}

impl Page {
    /// One on any free port of the loopback address. The controllers of that cluster are known.
    ///
    /// # Errors
    /// There is no port or no secret for it, or nothing to connect with.
    pub async fn over(api: &ApiServer, assumptions: Assumptions) -> io::Result<Self> {
        let reader = Reader::new(api, None).map_err(io::Error::other)?;
        let namespace = api.default_namespace().to_owned();
        let source = Reads { reader, namespace, of: None, assumptions, last: Mutex::new(None) };
        Ok(Self { place: Place::take(0).await?, source })
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
    last: Mutex<Option<(Instant, Told<WaitingNow>)>>,
}

impl Source for Reads {
    fn waiting(&self) -> Answer<'_, WaitingNow> {
        async {
            let mut last = self.last.lock().await;
            if let Some((at, told)) = last.as_ref()
                && at.elapsed() < FRESH
            {
                return Ok(told.clone());
            }
            let question = Question::Cluster(self.namespace.clone());
            let reading = self.reader.look(&question, &|_| {}).await.map_err(trouble)?;
            let findings = doctor(&reading.snapshot, &self.assumptions, self.of.as_deref());
            let findings = Called::here().findings(findings);
            let told = Told { text: findings.to_string(), value: waiting_now(findings) };
            *last = Some((Instant::now(), told.clone()));
            Ok(told)
        }
        .boxed()
    }

    fn explain<'a>(&'a self, subject: &'a Subject) -> Answer<'a, Explanation> {
        async move {
            let reading = self.reader.read(subject, &|_| {}).await.map_err(trouble)?;
            let value = explain(&reading.snapshot, subject, &self.assumptions);
            let value = Called::here().explanation(value);
            let style = Style { color: false, ascii: false, utc: true, wide: true, width: super::WIDTH };
            Ok(Told { text: text(&value, style), value })
        }
        .boxed()
    }

    fn node<'a>(&'a self, name: &'a str) -> Answer<'a, NodeNow> {
        async move {
            let question = Question::Drain(name.into());
            let reading = self.reader.look(&question, &|_| {}).await.map_err(trouble)?;
            let view = drain(&reading.snapshot, &self.assumptions, &name.into(), None);
            Ok(Told { text: view.to_string(), value: node_now(view) })
        }
        .boxed()
    }
}

#[expect(clippy::needless_pass_by_value, reason = "it is what an error is mapped with")]
fn trouble(error: Unreachable) -> Trouble {
    Trouble(error.to_string())
}

/// A row for each cause that something waits for.
fn waiting_now(findings: Findings) -> WaitingNow {
    WaitingNow {
        observed: findings.observed,
        rows: findings.findings.into_iter().filter_map(row).collect(),
        unseen: findings.unchecked,
    }
}

fn row(finding: Finding) -> Option<WaitingRow> {
    let verdict = match finding.severity {
        Severity::Blocked => Verdict::Blocked,
        Severity::Waiting => Verdict::Waiting,
        Severity::Risk => return None,
    };
    let example = finding.examples.first()?;
    let says = |field| example.get(field).and_then(serde_json::Value::as_str).unwrap_or_default();
    let subject = Subject::new(says("kind"), says("namespace"), says("name")).ok()?;
    let more = finding.count.saturating_sub(1);
    Some(WaitingRow {
        object: named(&subject),
        detail: if more > 0 { format!("and {more} more") } else { String::new() },
        reason: finding.reason.to_owned(),
        message: finding.summary,
        verdict,
        since: finding.oldest,
        until: finding.next_at,
    })
}

fn named(subject: &Subject) -> Named {
    let typed = subject.to_string();
    let kind = typed.split('/').next().unwrap_or_default().to_owned();
    let namespace = subject.namespace().unwrap_or_default().to_owned();
    Named { kind, namespace, name: subject.name().to_owned() }
}

fn node_now(view: DrainView) -> NodeNow {
    let mut headline = match (view.exists, view.ready) {
        (Some(false), _) => "gone",
        (None, _) => "not read",
        (Some(true), true) => "Ready",
        (Some(true), false) => "not Ready",
    }
    .to_owned();
    if view.cordoned == Some(true) {
        headline.push_str(", cordoned");
    }
    NodeNow {
        observed: view.observed,
        headline,
        verdict: view.verdict,
        summary: format!("It has {}.", counted(view.volumes.len(), "volume")),
        holdings: view.volumes.into_iter().map(holding).collect(),
        name: view.node,
        unseen: view.unseen,
    }
}

fn holding(volume: NodeVolume) -> Holding {
    let pod = volume.pod.as_deref().and_then(|pod| pod.split_once('/'));
    let pod = pod.map(|(namespace, name)| Named {
        kind: "pod".to_owned(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    });
    Holding {
        volume: Named { kind: "pv".to_owned(), namespace: String::new(), name: volume.volume },
        pod,
        reason: volume.stage.as_str().to_owned(),
        message: volume.waits_for,
        since: volume.since,
    }
}
