//! Policies: a name and a Lua text. Some are shipped.

use crate::listing;

/// A program that decides when, where and how much load moves: one Lua file that defines the
/// functions `when()` and `where()`, and may define `metaload()`, `mdsload(i)` and the list
/// `howmuch`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BalancerPolicy {
    name: String,
    text: String,
}

/// Names and texts of the shipped policies. Those after Listing 4 differ in `when` or `mdsload`.
const SHIPPED: [(&str, &str); 8] = [
    ("cephfs", include_str!("../policies/cephfs.lua")),
    ("greedy-spill", include_str!("../policies/greedy-spill.lua")),
    ("greedy-spill-evenly", include_str!("../policies/greedy-spill-evenly.lua")),
    ("fill-and-spill", include_str!("../policies/fill-and-spill.lua")),
    (
        "adaptable-conservative",
        concat!(
            include_str!("../policies/adaptable-conservative.lua"),
            include_str!("../policies/adaptable-load.lua"),
            include_str!("../policies/adaptable-rest.lua")
        ),
    ),
    (
        "adaptable",
        concat!(
            include_str!("../policies/adaptable.lua"),
            include_str!("../policies/adaptable-load.lua"),
            include_str!("../policies/adaptable-rest.lua")
        ),
    ),
    (
        "adaptable-requests",
        concat!(
            include_str!("../policies/adaptable-requests.lua"),
            include_str!("../policies/adaptable-rest.lua")
        ),
    ),
    (
        "adaptable-too-aggressive",
        concat!(
            include_str!("../policies/adaptable-too-aggressive.lua"),
            include_str!("../policies/adaptable-load.lua"),
            include_str!("../policies/adaptable-rest.lua")
        ),
    ),
];

impl BalancerPolicy {
    /// Takes functions, or the sections of a listing of the thesis. Errors of the text show when it
    /// runs: see [`check_policy`](crate::check_policy).
    pub fn new(name: impl Into<String>, text: &str) -> Self {
        Self { name: name.into(), text: listing::to_functions(text).into_owned() }
    }

    /// A shipped policy.
    pub fn shipped(name: &str) -> Option<Self> {
        SHIPPED.iter().find(|(shipped, _)| *shipped == name).map(|(name, text)| Self::new(*name, text))
    }

    pub fn all_shipped() -> impl Iterator<Item = Self> {
        SHIPPED.iter().map(|(name, text)| Self::new(*name, text))
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// The text as Lua functions.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The comment that begins the text, in one line.
    pub fn summary(&self) -> String {
        let comment = self.text.lines().map_while(|line| line.strip_prefix("--"));
        comment.map(str::trim).collect::<Vec<_>>().join(" ")
    }
}
