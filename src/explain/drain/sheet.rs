//! The sheet of a node: all its volumes, or what a drain still waits for.
//!
//! In: the view. Out: counts, a row for each volume, and a line for each attacher.

use super::{DrainQueue, DrainStage, DrainView, DrainedVolume};
use crate::explain::{
    age,
    sheet::{Printed, Sheet, Word},
    subject,
};

/// So many rows are printed; JSON has all of them.
const DRAIN_ROWS: usize = 40;
/// On the page: no node has more.
const ROWS_WIDE: usize = 1_000;

impl Printed for DrainView {
    fn sheet(&self, is_wide: bool) -> Sheet {
        let mut sheet = Sheet::new(self.observed.at, [format!("{}  {}", self.node, self.state()).into()]);
        sheet.say("    ", self.counts());
        sheet.section("");
        let (title, most) = (
            if self.is_drained { "still here" } else { "volume" },
            if is_wide { ROWS_WIDE } else { DRAIN_ROWS },
        );
        let rows: Vec<&DrainedVolume> =
            self.volumes.iter().filter(|it| !self.is_drained || it.stage <= DrainStage::Mounted).collect();
        sheet.table(&[title, "claim", "pod", "since", "waits for"], rows.iter().take(most).map(|it| row(it)));
        if let Some(more) = rows.len().checked_sub(most).filter(|more| *more > 0) {
            sheet.say("", format!("… and {more} more: -o json"));
        }
        sheet.notes("", self.attachers.iter().map(DrainQueue::line));
        if is_wide {
            sheet.section("What is not known");
        }
        sheet.notes("not known: ", &self.unknown);
        sheet.unseen("not checked: ", &self.unseen, is_wide);
        sheet
    }
}

fn row(it: &DrainedVolume) -> Vec<Vec<Word>> {
    let named = |kind: &str, name: &Option<String>, missing: &str| {
        let Some(name) = name else { return missing.into() };
        let (namespace, own) = name.split_once('/').unwrap_or(("", name));
        subject::named(kind, namespace, own)
            .map_or_else(|_| name.as_str().into(), |it| Word::Object(subject::json(&it), name.clone()))
    };
    let waits_for =
        format!("{}{}", it.waits_for, if it.stage == DrainStage::Attaching { " (attaching)" } else { "" });
    vec![
        vec![named("pv", &Some(it.volume.clone()), "-")],
        vec![named("pvc", &it.claim, "-")],
        vec![named("pod", &it.pod, "(no pod)")],
        vec![it.since.map_or_else(|| "-".into(), Word::Since)],
        vec![waits_for.into()],
    ]
}

impl DrainView {
    /// How it stands with the node: Ready, cordoned, tainted.
    fn state(&self) -> String {
        let mut state = match (self.exists, self.ready) {
            (Some(false), _) => "gone".to_owned(),
            (None, _) => "not read".to_owned(),
            (Some(true), true) => "Ready".to_owned(),
            (Some(true), false) => match self.unready_since {
                Some(since) => format!("not Ready for {}", age::between(since, self.observed.at)),
                None => "not Ready".to_owned(),
            },
        };
        match self.cordoned {
            Some(true) => state.push_str(", cordoned"),
            // One that is not Ready has taints that keep new pods away.
            Some(false) if self.ready && self.taints.is_empty() => state.push_str(", takes new pods"),
            Some(false) | None => {}
        }
        if !self.taints.is_empty() {
            state.push_str(", tainted ");
            state.push_str(&self.taints.join(", "));
        }
        state
    }

    fn counts(&self) -> String {
        let mut counts = vec![age::counted(self.volumes.len(), "volume")];
        counts.extend(self.detached.map(|detached| format!("{detached} detached")));
        for (stage, words) in [
            (DrainStage::Detaching, "detaching (attacher)"),
            (DrainStage::DetachesNext, "detaches next"),
            (DrainStage::Mounted, "still mounted"),
            (DrainStage::InUse, "in use"),
            (DrainStage::Attaching, "attaching"),
        ] {
            let count = self.volumes.iter().filter(|it| it.stage == stage).count();
            counts.extend((count > 0).then(|| format!("{count} {words}")));
        }
        counts.join(" · ")
    }
}

impl DrainQueue {
    fn line(&self) -> String {
        let mut line = format!("attacher {}: {} in queue", self.driver, self.waiting);
        if let (Some(rate), Some(left)) = (self.per_second, self.seconds_left) {
            let left = age::short(i64::try_from(left).unwrap_or(i64::MAX));
            line = format!("{line}, {rate:.1}/s → about {left}");
        }
        if self.is_there == Some(false) {
            line.push_str(", and it is not there: nothing will be detached");
        }
        if self.is_limited {
            line.push_str("  hint: runs with --kube-api-qps=5");
        }
        line
    }
}
