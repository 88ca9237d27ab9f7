//! Survey: all there is to look at, some at a time, from time to time and when an alarm begins or ends.
//!
//! In: the tables and the actual state. Out: keys, some at a time: when those have been planned, it goes on
//! with the next. What happens meanwhile waits for some, not for all. No turn gathers the keys of a whole cluster, either.

use std::collections::BTreeSet;

use apiserver::{
    ids::{NodeName, PodKey},
    kinds::Narrow,
    tables::{Objects, Table},
};

use crate::attach_detach::state::actual::ActualState;

/// So many volumes on nodes are judged, and so many nodes looked at, before what came in meanwhile is
/// taken. Without optimisation one took 0.16 ms at most where that was measured, so a turn is 50 ms (L15), and with it
/// a tenth of that. A volume on more nodes has several turns.
pub const AT_ONCE: usize = 300;

/// So many pods, or nodes with their volumes, of which a node has a dozen, are added at once.
const SURVEYED_AT_ONCE: usize = AT_ONCE / 6;

/// So many keys, or a few more, are gathered and sorted in a turn: some milliseconds.
const GATHERED_AT_ONCE: usize = 10_000;

/// What is yet to be looked at.
#[derive(Clone, Debug, Default)]
pub struct Survey {
    /// What is yet to be gathered.
    stages: BTreeSet<SurveyStage>,
    /// What was gathered, the next last.
    left: Vec<Surveyed>,
}

/// What there is to look at.
#[derive(Clone, Debug)]
pub enum Surveyed {
    /// A pod, and of its volumes those of which nothing is known on its node yet.
    Pod(PodKey),
    /// A node, and its volumes, on it.
    Node(NodeName),
}

/// A part of a survey, in their order; of a table, from this part of it on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum SurveyStage {
    Pods(usize),
    Nodes(usize),
    /// Nodes that have no object.
    GoneNodes,
    /// All once more, since it was to begin before it was over.
    Again,
}

impl Survey {
    /// Begins. One that is not over goes on, and begins anew behind its end: however often it is to begin, its end comes.
    pub fn begin(&mut self) {
        if !self.is_over() {
            self.stages.insert(SurveyStage::Again);
            return;
        }
        self.stages.extend([SurveyStage::Pods(0), SurveyStage::Nodes(0), SurveyStage::GoneNodes]);
    }

    /// Whether all was looked at.
    pub fn is_over(&self) -> bool {
        self.stages.is_empty() && self.left.is_empty()
    }

    /// Hands some out. If there are none, gathers the next.
    pub fn next(&mut self, objects: &Objects, actual: &ActualState) -> Vec<Surveyed> {
        if self.left.is_empty() {
            self.gather(objects, actual);
            return Vec::new();
        }
        self.left.split_off(self.left.len().saturating_sub(SURVEYED_AT_ONCE))
    }

    /// Gathers a part, the first last.
    fn gather(&mut self, objects: &Objects, actual: &ActualState) {
        self.left = match self.stages.pop_first() {
            None => Vec::new(),
            Some(SurveyStage::Again) => {
                self.begin();
                Vec::new()
            }
            Some(SurveyStage::Pods(part)) => {
                let pods = self.keys(&objects.pods, part, SurveyStage::Pods);
                pods.into_iter().map(Surveyed::Pod).collect()
            }
            Some(SurveyStage::Nodes(part)) => {
                let nodes = self.keys(&objects.nodes, part, SurveyStage::Nodes);
                nodes.into_iter().map(Surveyed::Node).collect()
            }
            Some(SurveyStage::GoneNodes) => {
                let nodes = actual.nodes().map(|(name, _)| name);
                let gone = nodes.filter(|name| objects.nodes.get(name).is_none());
                in_reverse(gone.cloned().collect()).into_iter().map(Surveyed::Node).collect()
            }
        };
    }

    /// The keys of some parts of a table. The parts behind them come in a stage of their own.
    fn keys<T: Narrow>(
        &mut self,
        table: &Table<T>,
        first: usize,
        stage: fn(usize) -> SurveyStage,
    ) -> Vec<T::Key> {
        let mut keys = Vec::new();
        for part in first.. {
            if keys.len() >= GATHERED_AT_ONCE {
                self.stages.insert(stage(part));
                break;
            }
            let Some(some) = table.keys_in(part) else { break };
            keys.extend(some);
        }
        in_reverse(keys)
    }
}

fn in_reverse<K: Ord>(mut keys: Vec<K>) -> Vec<K> {
    keys.sort_unstable_by(|one, other| other.cmp(one));
    keys
}

#[cfg(test)]
mod tests {
    use apiserver::kinds::Node;

    use super::*;

    #[test]
    fn l15_a_survey_that_is_to_begin_all_the_time_comes_to_its_end_and_once_more() {
        let (objects, actual) = (Objects::default(), ActualState::default());
        let mut node = Node::default();
        node.metadata.name = "n".into();
        objects.apply(node);
        let (mut survey, mut seen) = (Survey::default(), 0);
        for _ in 0..20 {
            survey.begin();
            seen += survey.next(&objects, &actual).len();
        }
        assert!(seen > 1, "{seen}");
        while !survey.is_over() {
            seen += survey.next(&objects, &actual).len();
        }
        survey.begin();
        while !survey.is_over() {
            seen -= survey.next(&objects, &actual).len();
        }
        assert!(seen > 1, "{seen}: what began last looks at all");
    }

    #[test]
    fn l15_no_turn_gathers_the_keys_of_a_whole_cluster_and_each_comes_once() {
        const NODES: usize = 5 * GATHERED_AT_ONCE;
        let (objects, actual) = (Objects::default(), ActualState::default());
        for number in 0..NODES {
            let mut node = Node::default();
            node.metadata.name = format!("n{number}").into();
            objects.apply(node);
        }
        let (mut survey, mut seen) = (Survey::default(), BTreeSet::new());
        survey.begin();
        while !survey.is_over() {
            for surveyed in survey.next(&objects, &actual) {
                let Surveyed::Node(name) = surveyed else { panic!("{surveyed:?}") };
                assert!(seen.insert(name));
            }
            assert!(survey.left.len() < 2 * GATHERED_AT_ONCE, "{}", survey.left.len());
        }
        assert_eq!(seen.len(), NODES);
    }
}
