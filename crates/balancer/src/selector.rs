//! Selectors: which fragments of one directory add up to a target load (sevilla, 4.2.2).

use serde::{Deserialize, Serialize};

/// A strategy to pick fragments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FragmentSelector {
    /// The largest until the target is reached.
    BigFirst,
    /// The smallest until the target is reached.
    SmallFirst,
    /// Large and small ones in turn until the target is reached.
    BigSmall,
    /// The first half of the list.
    Half,
}

impl FragmentSelector {
    /// Accepts the spellings of the thesis: `big_first`, `big-first`, `big`.
    pub fn parse(name: &str) -> Option<Self> {
        Some(match name.replace('-', "_").as_str() {
            "big_first" | "big" => Self::BigFirst,
            "small_first" | "small" => Self::SmallFirst,
            "big_small" => Self::BigSmall,
            "half" => Self::Half,
            _ => return None,
        })
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::BigFirst => "big_first",
            Self::SmallFirst => "small_first",
            Self::BigSmall => "big_small",
            Self::Half => "half",
        }
    }

    /// Indices into `loads`, in the order of selection. Equal loads are taken in list order.
    pub fn select(self, loads: &[f64], target: f64) -> Vec<usize> {
        let mut order: Vec<usize> = (0..loads.len()).collect();
        let by_size = |order: &mut Vec<usize>| order.sort_by(|a, b| loads[*b].total_cmp(&loads[*a]));
        match self {
            Self::Half => {
                order.truncate(loads.len().div_ceil(2));
                return order;
            }
            Self::BigFirst => by_size(&mut order),
            Self::SmallFirst => order.sort_by(|a, b| loads[*a].total_cmp(&loads[*b])),
            Self::BigSmall => {
                by_size(&mut order);
                let (big, small) = (order.clone(), order.iter().rev());
                order = big.iter().zip(small).flat_map(|(big, small)| [*big, *small]).collect();
                order.truncate(loads.len());
            }
        }
        let mut sum = 0.0;
        let is_short = |index: &usize| {
            let is_short = sum < target;
            sum += loads[*index];
            is_short
        };
        order.into_iter().take_while(is_short).collect()
    }
}

/// The selection of one selector.
#[derive(Clone, Debug, PartialEq)]
pub struct FragmentSelection {
    pub selector: FragmentSelector,
    /// Indices into the list of loads.
    pub picked: Vec<usize>,
    /// Sum of the picked loads.
    pub load: f64,
    /// Difference between `load` and the target.
    pub distance: f64,
}

/// Runs all selectors. Returns the selection that is closest to the target; of equals, the first.
pub fn closest(selectors: &[FragmentSelector], loads: &[f64], target: f64) -> Option<FragmentSelection> {
    let selections = selectors.iter().map(|selector| {
        let picked = selector.select(loads, target);
        let load: f64 = picked.iter().map(|index| loads[*index]).sum();
        FragmentSelection { selector: *selector, picked, load, distance: (load - target).abs() }
    });
    selections.min_by(|a, b| a.distance.total_cmp(&b.distance))
}
