//! The walk down the namespace: from the roots of a rank's subtrees, divides only what is too
//! popular to move whole (sevilla, 4.2.2).

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use crate::hooks::{HookError, Hooks, finite};
use crate::plan::PassedOver;
use crate::selector::{FragmentSelector, closest};
use crate::snapshot::FragmentMetrics;

/// A target is reached if no more than this part of it is missing.
const MISSING_PART_MAX: f64 = 0.05;

/// A fragment that a selector picked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct PickedFragment {
    pub(crate) index: usize,
    pub(crate) load: f64,
    pub(crate) selector: FragmentSelector,
}

/// A fragment whose children are to be looked at, hottest first.
struct HotFragment {
    load: f64,
    index: usize,
}

impl Ord for HotFragment {
    fn cmp(&self, other: &Self) -> Ordering {
        self.load.total_cmp(&other.load).then(other.index.cmp(&self.index))
    }
}

impl PartialOrd for HotFragment {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for HotFragment {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for HotFragment {}

/// Why a fragment is not offered to the selectors.
#[derive(Clone, Copy)]
enum PassReason {
    Dwelling,
    TooHot,
    Unprofitable,
}

/// The fragments of the deciding rank, while it picks what to move.
pub(crate) struct FragmentWalk<'a> {
    fragments: &'a [FragmentMetrics],
    hooks: &'a Hooks,
    /// Children of all fragments, in order of their parents; those of the roots come first.
    children: Vec<u32>,
    /// Where a fragment's children begin, at its index + 1.
    starts: Vec<u32>,
    /// Negative if not computed yet.
    loads: Vec<f64>,
    /// Whole or in part, it has moved too recently.
    is_dwelling: Vec<bool>,
    /// Picked.
    is_picked: Vec<bool>,
    /// Something in it is picked.
    is_divided: Vec<bool>,
    passed_over: Vec<Option<PassReason>>,
    /// Fragments with a load up to this one gain less than they cost wherever they go.
    pub(crate) load_min: f64,
}

impl<'a> FragmentWalk<'a> {
    /// `is_recent`: whether a fragment that moved then has to stay.
    pub(crate) fn new(
        fragments: &'a [FragmentMetrics],
        hooks: &'a Hooks,
        is_recent: impl Fn(u64) -> bool,
    ) -> Self {
        let (starts, children) = children_of(fragments);
        let n = fragments.len();
        Self {
            fragments,
            hooks,
            children,
            starts,
            loads: vec![-1.0; n],
            is_dwelling: dwelling(fragments, is_recent),
            is_picked: vec![false; n],
            is_divided: vec![false; n],
            passed_over: vec![None; n],
            load_min: 0.0,
        }
    }

    /// The fragments below the one at `parent`; the roots for `None`.
    fn list(&self, parent: Option<usize>) -> Vec<usize> {
        let at = parent.map_or(0, |parent| parent + 1);
        let (start, end) = (self.starts[at] as usize, self.starts[at + 1] as usize);
        self.children[start..end].iter().map(|index| *index as usize).collect()
    }

    fn has_children(&self, index: usize) -> bool {
        self.starts[index + 1] < self.starts[index + 2]
    }

    /// Metadata load of the roots.
    pub(crate) fn root_load(&mut self) -> Result<f64, HookError> {
        let roots = self.list(None);
        self.compute(&roots)?;
        finite("metaload", roots.iter().map(|index| self.loads[*index]).sum())
    }

    fn compute(&mut self, list: &[usize]) -> Result<(), HookError> {
        let missing: Vec<usize> = list.iter().copied().filter(|index| self.loads[*index] < 0.0).collect();
        let loads = self.hooks.metaloads(missing.iter().map(|index| &self.fragments[*index].counters))?;
        for (index, load) in missing.into_iter().zip(loads) {
            self.loads[index] = load;
        }
        Ok(())
    }

    /// Picks fragments with the metadata load `target` in sum, as near as the selectors come.
    pub(crate) fn pick(
        &mut self,
        target: f64,
        selectors: &[FragmentSelector],
    ) -> Result<Vec<PickedFragment>, HookError> {
        let mut missing = target;
        let mut picked = Vec::new();
        let mut hot = BinaryHeap::new();
        let mut list = self.list(None);
        loop {
            self.compute(&list)?;
            let fitting = self.fitting(&list, missing, &mut hot);
            let loads: Vec<f64> = fitting.iter().map(|index| self.loads[*index]).collect();
            let selection = closest(selectors, &loads, missing).filter(|it| it.distance < missing);
            for at in selection.iter().flat_map(|selection| &selection.picked) {
                let selector = selection.as_ref().map_or(selectors[0], |selection| selection.selector);
                picked.push(PickedFragment { index: fitting[*at], load: loads[*at], selector });
                self.mark(fitting[*at]);
            }
            missing -= selection.map_or(0.0, |selection| selection.load);
            if missing <= target * MISSING_PART_MAX {
                return Ok(picked);
            }
            let Some(HotFragment { index, .. }) = hot.pop() else { return Ok(picked) };
            list = self.list(Some(index));
        }
    }

    /// The fragments of a list that may move whole. Others that have children become `hot`.
    fn fitting(&mut self, list: &[usize], missing: f64, hot: &mut BinaryHeap<HotFragment>) -> Vec<usize> {
        let mut fitting = Vec::new();
        for &index in list {
            let load = self.loads[index];
            if self.is_picked[index] || load == 0.0 {
                continue;
            }
            if load <= self.load_min {
                self.passed_over[index] = Some(PassReason::Unprofitable);
                continue;
            }
            // A fragment that cannot be divided may be nearer to the target than to move nothing.
            let has_children = self.has_children(index);
            let fits = if has_children { load <= missing } else { load < 2.0 * missing };
            if fits && !self.is_dwelling[index] && !self.is_divided[index] {
                self.passed_over[index] = None;
                fitting.push(index);
                continue;
            }
            if self.is_dwelling[index] {
                self.passed_over[index] = Some(PassReason::Dwelling);
            } else if !has_children {
                self.passed_over[index] = Some(PassReason::TooHot);
            }
            if has_children {
                hot.push(HotFragment { load, index });
            }
        }
        fitting
    }

    /// Adds the fragments that were not offered to the selectors.
    pub(crate) fn count_passed_over(&self, sum: &mut PassedOver) {
        for reason in self.passed_over.iter().flatten() {
            match reason {
                PassReason::Dwelling => sum.dwelling += 1,
                PassReason::TooHot => sum.too_hot += 1,
                PassReason::Unprofitable => sum.unprofitable += 1,
            }
        }
    }

    fn mark(&mut self, index: usize) {
        self.is_picked[index] = true;
        let mut above = self.fragments[index].parent;
        while let Some(parent) = above.map(|parent| parent as usize) {
            if std::mem::replace(&mut self.is_divided[parent], true) {
                break;
            }
            above = self.fragments[parent].parent;
        }
    }
}

/// Starts and indices of all lists of children: the roots', then those of each fragment.
fn children_of(fragments: &[FragmentMetrics]) -> (Vec<u32>, Vec<u32>) {
    let list = |fragment: &FragmentMetrics| fragment.parent.map_or(0, |parent| parent as usize + 1);
    let mut starts = vec![0; fragments.len() + 2];
    for fragment in fragments {
        starts[list(fragment) + 1] += 1;
    }
    for at in 1..starts.len() {
        starts[at] += starts[at - 1];
    }
    let mut next = starts.clone();
    let mut children = vec![0; fragments.len()];
    for (index, fragment) in (0..).zip(fragments) {
        let at = &mut next[list(fragment)];
        children[*at as usize] = index;
        *at += 1;
    }
    (starts, children)
}

/// Fragments that have moved recently, with all above and below them.
fn dwelling(fragments: &[FragmentMetrics], is_recent: impl Fn(u64) -> bool) -> Vec<bool> {
    let mut below: Vec<bool> =
        fragments.iter().map(|fragment| fragment.moved_ms.is_some_and(&is_recent)).collect();
    let mut above = below.clone();
    for (index, fragment) in fragments.iter().enumerate() {
        if let Some(parent) = fragment.parent {
            above[index] |= above[parent as usize];
        }
    }
    for (index, fragment) in fragments.iter().enumerate().rev() {
        if let Some(parent) = fragment.parent {
            below[parent as usize] |= below[index];
        }
    }
    above.iter().zip(below).map(|(above, below)| *above || below).collect()
}
