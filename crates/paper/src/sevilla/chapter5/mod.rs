//! Chapter 5: the policy engine as a library, for sequencers of a shared log and for a cache.

mod cache;
mod fans;
mod hosts;
mod model;
mod sequencers;

use crate::{EVERYWHERE, Experiment, SIMULATED};

pub(crate) const ALL: [Experiment; 7] = [
    Experiment {
        id: "sevilla-fig5.2",
        title: "Balancers of sequencers",
        places: EVERYWHERE,
        run: sequencers::fig5_2,
    },
    Experiment {
        id: "sevilla-fig5.3",
        title: "Balancing modes and migration units",
        places: EVERYWHERE,
        run: sequencers::fig5_3,
    },
    Experiment {
        id: "sevilla-fig5.5",
        title: "Proxy mode and client mode",
        places: EVERYWHERE,
        run: sequencers::fig5_5,
    },
    Experiment {
        id: "sevilla-fig5.11",
        title: "Fixed and multi-policy caches",
        places: SIMULATED,
        run: cache::fig5_11,
    },
    Experiment {
        id: "sevilla-fig5.12",
        title: "Memory of a cache over time",
        places: SIMULATED,
        run: cache::fig5_12,
    },
    Experiment {
        id: "sevilla-fig5.14",
        title: "Dynamically sized cache",
        places: SIMULATED,
        run: cache::fig5_14,
    },
    Experiment {
        id: "sevilla-fig5.18",
        title: "Groups of accesses to a file system",
        places: SIMULATED,
        run: fans::fig5_18,
    },
];
