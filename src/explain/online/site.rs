//! The page on the daemon: the same views as on loopback, over what the API tells this one.
//!
//! In: a request of a known user. Out: a page. A user who may see an object by the API sees its page, and no one else.

use std::sync::Arc;

use http::HeaderMap;
use k8s_openapi::jiff::Timestamp;

use super::{
    access,
    answers::{Trouble as Denied, object},
    desk::Desk,
    summary,
};
use crate::{
    explain::{
        age,
        drain::{DrainView, NodeVolume, Stage},
        page::{
            routes::Site,
            values::{Answer, Holding, Named, NodeNow, Source, Told, Trouble, WaitingNow},
        },
        report::{Explanation, Observed, Verdict},
        subject::Subject,
        text::{Style, text},
    },
    http::{Answer as Page, Reply, Rights, Sent, Visit},
    kube_api::{
        ids::{NodeName, PodKey, VolumeName},
        kinds::{Narrow, ObjectRef, PersistentVolume, Pod},
    },
};

/// What the daemon tells one who asks.
#[derive(Debug)]
struct ForOne {
    desk: Arc<Desk>,
    rights: Rights,
}

/// Answers with a page.
pub(super) async fn reply(desk: &Arc<Desk>, visit: &Visit) -> Reply {
    let site = Site::new(ForOne { desk: Arc::clone(desk), rights: visit.rights.clone() });
    let (parts, body) = site.answer(&visit.head).await.into_parts();
    // What all may see does not make a user known: the connection of a stranger gives way first.
    let known = parts.status.is_success() && site.is_of_object(visit.head.uri.path());
    let mut headers: HeaderMap = parts.headers;
    // The same address says different things to different people.
    headers.insert(http::header::VARY, http::HeaderValue::from_static("Authorization"));
    // The header says it more exactly.
    let page = Page { status: parts.status, content_type: "text/html; charset=utf-8", body };
    Reply { sent: Sent::of(page).with_headers(headers), known }
}

fn trouble(denied: &Denied) -> Trouble {
    Trouble(denied.told("this page").1.trim_end().to_owned())
}

impl Source for ForOne {
    fn waiting(&self) -> Answer<'_, WaitingNow> {
        Box::pin(async move {
            let summary = summary::of(&self.desk, &self.rights).await.map_err(|denied| trouble(&denied))?;
            let now = summary.now;
            let line = |row: &crate::explain::page::values::WaitingRow| {
                let since = row.since.map_or(String::new(), |since| age::between(since, now.observed.at));
                let name = [&*row.object.namespace, "/", &row.object.name].concat();
                let name = name.trim_start_matches('/');
                format!("{:<8} {} {name}: {}: {}\n", since, row.object.kind, row.reason, row.message)
            };
            let text = now.rows.iter().map(line).collect();
            Ok(Told { value: now, text })
        })
    }

    fn explain<'a>(&'a self, subject: &'a Subject) -> Answer<'a, Explanation> {
        Box::pin(async move {
            let told = object(&self.desk, subject, &self.rights).await;
            let (value, _) = told.map_err(|denied| trouble(&denied))?;
            let text = text(&value, Style::default());
            Ok(Told { value, text })
        })
    }

    fn node<'a>(&'a self, name: &'a str) -> Answer<'a, NodeNow> {
        Box::pin(async move {
            let value = self.holdings(name).await.map_err(|denied| trouble(&denied))?;
            let lines = value.holdings.iter().map(|it| {
                let pod =
                    it.pod.as_ref().map_or(String::new(), |pod| format!("{}/{}", pod.namespace, pod.name));
                format!("{}  {pod}  {}: {}\n", it.volume.name, it.reason, it.message)
            });
            let text = std::iter::once(format!("{}  {}\n{}\n", value.name, value.headline, value.summary));
            let text = text.chain(lines).collect();
            Ok(Told { value, text })
        })
    }
}

impl ForOne {
    async fn holdings(&self, name: &str) -> Result<NodeNow, Denied> {
        let node = NodeName::from(name);
        if !self.rights.may_ask_for(&access::resource(&ObjectRef::Node(node.clone()))).await? {
            return Ok(forbidden(name));
        }
        let view = self.desk.node(&node).await?;
        let mut objects: Vec<ObjectRef> = view.volumes.iter().map(volume).collect();
        objects.extend(view.volumes.iter().filter_map(pod));
        let hidden = access::hidden(objects, &self.rights).await?;
        // What a driver said is in its attachment.
        let attachments = access::resource(&ObjectRef::Attachment(String::new().into()));
        let may_attachments = self.rights.may_see(&attachments).await?;
        let mut now = now(&view);
        for row in &view.volumes {
            if hidden.contains(&volume(row)) {
                now.redacted += 1;
                continue;
            }
            let pod = pod(row);
            let is_shown = pod.as_ref().is_some_and(|pod| !hidden.contains(pod));
            now.holdings.push(Holding {
                volume: named(PersistentVolume::KIND, "", &row.volume),
                pod: row.pod.as_deref().filter(|_| is_shown).and_then(|pod| {
                    let (namespace, name) = pod.split_once('/')?;
                    Some(named(Pod::KIND, namespace, name))
                }),
                reason: row.stage.as_str().to_owned(),
                message: if row.stage == Stage::Detaching && !may_attachments {
                    format!("attacher of {}", row.driver)
                } else {
                    row.waits_for.clone()
                },
                since: row.since,
                until: row.forced_at,
            });
        }
        Ok(now)
    }
}

fn volume(row: &NodeVolume) -> ObjectRef {
    ObjectRef::Volume(VolumeName::from(row.volume.as_str()))
}

fn pod(row: &NodeVolume) -> Option<ObjectRef> {
    let (namespace, name) = row.pod.as_deref()?.split_once('/')?;
    Some(ObjectRef::Pod(PodKey::new(namespace, name)))
}

fn named(kind: &str, namespace: &str, name: &str) -> Named {
    Named { kind: kind.to_owned(), namespace: namespace.to_owned(), name: name.to_owned() }
}

/// The node, without what it holds.
fn now(view: &DrainView) -> NodeNow {
    let headline = match (view.exists, view.ready, view.unready_since) {
        (Some(false), ..) => "gone".to_owned(),
        (_, true, _) => "Ready".to_owned(),
        (_, false, Some(since)) => format!("not Ready for {}", age::between(since, view.observed.at)),
        (_, false, None) => "not Ready".to_owned(),
    };
    let stages = [Stage::InUse, Stage::Mounted, Stage::DetachesNext, Stage::Detaching, Stage::Attaching].map(
        |stage| {
            let count = view.volumes.iter().filter(|it| it.stage == stage).count();
            (count > 0).then(|| format!("{count} {}", stage.as_str()))
        },
    );
    let stages: Vec<String> = stages.into_iter().flatten().collect();
    let summary = match stages.as_slice() {
        [] => "It has no volumes.".to_owned(),
        stages => format!("{}: {}.", age::counted(view.volumes.len(), "volume"), stages.join(", ")),
    };
    NodeNow {
        observed: view.observed.clone(),
        name: view.node.clone(),
        headline,
        verdict: view.verdict,
        summary,
        holdings: Vec::new(),
        redacted: 0,
        unseen: Vec::new(),
    }
}

fn forbidden(name: &str) -> NodeNow {
    NodeNow {
        observed: Observed {
            resource_version: None,
            at: Timestamp::now(),
            source: crate::explain::report::Source::Daemon,
            leader: None,
        },
        name: name.to_owned(),
        headline: String::new(),
        verdict: Verdict::Forbidden,
        summary: "You may not get this node.".to_owned(),
        holdings: Vec::new(),
        redacted: 0,
        unseen: Vec::new(),
    }
}
