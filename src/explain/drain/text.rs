//! A node's volumes for a terminal: all of them, or what a drain still waits for.
//!
//! In: the view. Out: lines.

use std::fmt::{self, Write};

use super::{DrainView, NodeVolume, Queue, Stage};
use crate::explain::{
    age,
    text::unseen,
    wrap::{WIDTH, on_terminal},
};

/// So many rows are printed; JSON has all of them.
const ROWS: usize = 40;
/// Least room for what a volume waits for, beside its names.
const LEAST: usize = 24;

impl DrainView {
    /// What a drain still waits for.
    #[must_use]
    pub fn to_drain_text(&self) -> String {
        let mut text = String::new();
        let held = self.volumes.iter().filter(|it| it.stage <= Stage::Mounted).collect();
        // Writing into a string does not fail.
        let _ = self.write(&mut text, "STILL HERE", held);
        text
    }

    fn write(&self, f: &mut impl Write, title: &str, rows: Vec<&NodeVolume>) -> fmt::Result {
        self.head(f)?;
        self.table(f, title, rows)?;
        self.tail(f)
    }

    /// How it stands with the node: Ready, cordoned, tainted.
    pub(in crate::explain) fn state(&self) -> String {
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

    fn head(&self, f: &mut impl Write) -> fmt::Result {
        let count = |stage| self.volumes.iter().filter(|it| it.stage == stage).count();
        let mut counts = vec![age::counted(self.volumes.len(), "volume")];
        if let Some(detached) = self.detached {
            counts.push(format!("{detached} detached"));
        }
        let stages = [Stage::Detaching, Stage::DetachesNext, Stage::Mounted, Stage::InUse, Stage::Attaching];
        for stage in stages.into_iter().filter(|stage| count(*stage) > 0) {
            counts.push(format!("{} {}", count(stage), stage.as_str()));
        }
        f.write_str(&on_terminal("", &format!("{}  {}", self.node, self.state())))?;
        f.write_str(&on_terminal("    ", &counts.join(" · ")))
    }

    fn table(&self, f: &mut impl Write, title: &str, rows: Vec<&NodeVolume>) -> fmt::Result {
        if rows.is_empty() {
            return Ok(());
        }
        let more = rows.len().saturating_sub(ROWS);
        let cells: Vec<[String; 5]> = rows
            .into_iter()
            .take(ROWS)
            .map(|it| {
                let since = it.since.map(|since| age::between(since, self.observed.at));
                let waits = it.waits_for.clone();
                let claim = it.claim.clone().unwrap_or_else(|| "-".to_owned());
                let pod = it.pod.clone().unwrap_or_else(|| "(no pod)".to_owned());
                [it.volume.clone(), claim, pod, since.unwrap_or_else(|| "-".to_owned()), waits]
            })
            .collect();
        let heads = [title, "CLAIM", "POD", "SINCE", "WAITS FOR"].map(str::to_owned);
        let mut widths = [0_usize; 4];
        for row in std::iter::once(&heads).chain(&cells) {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        if widths.iter().sum::<usize>() + 2 * widths.len() + LEAST <= WIDTH {
            for row in std::iter::once(&heads).chain(&cells) {
                let [first @ .., last] = row;
                let mut label = String::new();
                for (cell, width) in first.iter().zip(widths) {
                    write!(label, "{cell:<width$}  ")?;
                }
                f.write_str(&on_terminal(&label, last))?;
            }
        } else {
            // A name that a provisioner gave takes half of it. Names stay whole, to be copied.
            writeln!(f, "{title}")?;
            for [volume, claim, pod, since, waits] in &cells {
                writeln!(f, "{volume}")?;
                let facts = format!("claim {claim} · pod {pod} · since {since} · waits for: {waits}");
                f.write_str(&on_terminal("    ", &facts))?;
            }
        }
        if more > 0 {
            writeln!(f, "… and {more} more: -o json")?;
        }
        Ok(())
    }

    fn tail(&self, f: &mut impl Write) -> fmt::Result {
        for queue in &self.attachers {
            f.write_str(&on_terminal("", &queue.line()))?;
        }
        for unknown in &self.unknown {
            f.write_str(&on_terminal("not known: ", unknown))?;
        }
        for line in unseen(&self.unseen, false) {
            f.write_str(&on_terminal("not checked: ", &line))?;
        }
        Ok(())
    }
}

impl Queue {
    fn line(&self) -> String {
        let mut line = format!("attacher {}: {} in queue", self.driver, self.waiting);
        if let (Some(rate), Some(left)) = (self.per_second, self.seconds_left) {
            line = format!(
                "{line}, {rate:.1}/s → about {}",
                age::short(i64::try_from(left).unwrap_or(i64::MAX))
            );
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

/// All volumes of the node.
impl fmt::Display for DrainView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, "VOLUME", self.volumes.iter().collect())
    }
}
