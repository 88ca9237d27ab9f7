//! Survey: all there is to look at, some at a time, from time to time and when an alarm begins or ends.
//!
//! In: the nodes of which something is known. Each volume on a node that was ever judged, and is not over, is on one of
//! them. Out: nodes, some at a time: when their volumes have been planned, it goes on behind them. What happens meanwhile
//! waits for some, not for all.

use std::{mem, ops::Bound};

use apiserver::ids::NodeName;

use crate::attach_detach::state::actual::ActualState;

/// So many volumes on nodes are judged, and so many nodes looked at, before what came in meanwhile is
/// taken. Without optimisation one took 0.16 ms at most where that was measured, so a turn is 50 ms (L15), and with it
/// a tenth of that. A volume on more nodes has several turns.
pub const AT_ONCE: usize = 300;

/// So many nodes with their volumes, of which a node has a dozen, are added at once.
const SURVEYED_AT_ONCE: usize = AT_ONCE / 6;

/// What is yet to be looked at.
#[derive(Clone, Debug, Default)]
pub struct Survey {
    /// Behind which node it goes on, unless it is over.
    place: Option<Bound<NodeName>>,
    /// Whether all is to be looked at once more, since it was to begin before it was over.
    again: bool,
}

impl Survey {
    /// Begins. One that is not over goes on, and begins anew behind its end: however often it is to begin, its end comes.
    pub fn begin(&mut self) {
        self.again = !self.is_over();
        self.place.get_or_insert(Bound::Unbounded);
    }

    /// Whether all was looked at.
    pub fn is_over(&self) -> bool {
        self.place.is_none()
    }

    /// The next nodes.
    pub fn next(&mut self, actual: &ActualState) -> Vec<NodeName> {
        let Some(place) = self.place.take() else { return Vec::new() };
        let nodes: Vec<NodeName> = actual.nodes_behind(place).take(SURVEYED_AT_ONCE).cloned().collect();
        self.place = match nodes.last() {
            Some(last) => Some(Bound::Excluded(last.clone())),
            None => mem::take(&mut self.again).then_some(Bound::Unbounded),
        };
        nodes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn l15_a_survey_that_is_to_begin_all_the_time_comes_to_its_end_and_once_more() {
        let mut actual = ActualState::default();
        actual.node_mut(&"n".into());
        let (mut survey, mut seen) = (Survey::default(), 0);
        for _ in 0..20 {
            survey.begin();
            seen += survey.next(&actual).len();
        }
        assert!(seen > 1, "{seen}");
        while !survey.is_over() {
            seen += survey.next(&actual).len();
        }
        survey.begin();
        while !survey.is_over() {
            seen -= survey.next(&actual).len();
        }
        assert!(seen > 1, "{seen}: what began last looks at all");
    }

    #[test]
    fn l15_no_turn_looks_at_a_whole_cluster_and_each_node_comes_once() {
        const NODES: usize = 5 * SURVEYED_AT_ONCE;
        let mut actual = ActualState::default();
        for number in 0..NODES {
            actual.node_mut(&NodeName::from(format!("n{number}")));
        }
        let (mut survey, mut seen) = (Survey::default(), Vec::new());
        survey.begin();
        while !survey.is_over() {
            let nodes = survey.next(&actual);
            assert!(nodes.len() <= SURVEYED_AT_ONCE, "{}", nodes.len());
            seen.extend(nodes);
        }
        assert!(seen.len() == NODES && seen.is_sorted());
    }
}
