//! Cost model: processor time of operations.

use std::path::{Path, PathBuf};

use espalier_proto::named;
use serde::Deserialize;

use crate::dist::Distribution;
use crate::random::Random;
use crate::time::Nanos;

/// The table `[model]`: a preset and overrides. Times are processor time of a server for one
/// request, unless stated.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ModelSettings {
    /// `wu`, `free`, or the path of a calibrated file with such a table.
    pub preset: Option<String>,
    /// Requests that create a name: of a file, directory or link.
    pub create: Option<Distribution>,
    /// Requests that remove a name.
    pub remove: Option<Distribution>,
    pub rename: Option<Distribution>,
    /// Requests that read a name or attributes.
    pub lookup: Option<Distribution>,
    /// Requests that change attributes.
    pub setattr: Option<Distribution>,
    /// A page of a listing, excluding its entries.
    pub readdir: Option<Distribution>,
    /// An entry of a listing, and its attributes if requested.
    pub entry: Option<Distribution>,
    pub attributes: Option<Distribution>,
    /// Requests that open and close files.
    pub open: Option<Distribution>,
    /// Requests that read and write data.
    pub data: Option<Distribution>,
    /// Other requests of clients.
    pub other: Option<Distribution>,
    /// Messages of other metadata servers.
    pub peer: Option<Distribution>,
    /// Processor time of a client for each call that sends a request.
    pub client: Option<Distribution>,
    /// Processor time of a client for each received message.
    pub client_message: Option<Distribution>,
    /// Additional processor time of servers and clients for waking an idle processor. Limited by
    /// the idle time.
    pub wake: Option<Distribution>,
    pub client_wake: Option<Distribution>,
    /// Additional processor time of servers and clients for switching to a connection, where the
    /// processor takes all messages that have arrived.
    pub turn: Option<Distribution>,
    pub client_turn: Option<Distribution>,
    /// Processor time of a metadata server for a write to the journal's file if no request waits
    /// for a sync; once for the changes of a batch.
    pub append: Option<Distribution>,
}

named! {
    /// Types of work with separate costs.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Work {
        Create = "create",
        Remove = "remove",
        Rename = "rename",
        Lookup = "lookup",
        SetAttr = "setattr",
        ReadDir = "readdir",
        Entry = "entry",
        Attributes = "attributes",
        Open = "open",
        Data = "data",
        Other = "other",
        Peer = "peer",
        Client = "client",
        ClientMessage = "client_message",
        Wake = "wake",
        ClientWake = "client_wake",
        Turn = "turn",
        ClientTurn = "client_turn",
        Append = "append",
    }
}

/// Cost of an entry of a listing, measured for an Espalier server on a virtual machine.
const ENTRY: Nanos = Nanos(600);

/// Cost of each type of work.
#[derive(Clone, Debug)]
pub struct Model([Distribution; Work::ALL.len()]);

/// Why a model cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    #[error(
        "[model] preset: there is no preset \"{name}\" (there are \"wu\" and \"free\"), and no such file: {cause}"
    )]
    NoPreset { name: String, cause: std::io::Error },
    #[error("{}: {cause}", path.display())]
    Malformed { path: PathBuf, cause: toml::de::Error },
    #[error("{}: a model that others are made from has no preset itself", .0.display())]
    Nested(PathBuf),
}

impl Model {
    /// All costs are zero.
    pub fn free() -> Self {
        Self([const { Distribution::ZERO }; Work::ALL.len()])
    }

    /// PVFS on Palmetto (wu 4.3.3 to 4.3.6). Operations that wu did not measure cost as much as a
    /// lookup; messages between servers are free, as P2S maps are. Attributes in a listing cost
    /// what carns IV.A.3 measured for 8 KiB files: opening and reading the attributes of 50,000 of
    /// them takes 0.660 s. For the cost of an entry, which is unknown for PVFS, Espalier's is used
    /// (`espalier sim calibrate`).
    pub fn wu() -> Self {
        let micros = |micros: u64| Nanos(micros * 1000);
        let mut model =
            Self([const { Distribution::uniform(Nanos(60_000), Nanos(90_000)) }; Work::ALL.len()]);
        model.0[Work::Create as usize] = Distribution::normal(micros(378), micros(25));
        model.0[Work::Remove as usize] = Distribution::normal(micros(375), micros(23));
        model.0[Work::Rename as usize] = Distribution::normal(micros(378), micros(25));
        model.0[Work::Entry as usize] = Distribution::constant(ENTRY);
        model.0[Work::Attributes as usize] = Distribution::constant(Nanos(13_200));
        let of_clients = [Work::Client, Work::ClientMessage, Work::ClientWake, Work::ClientTurn];
        for free in [Work::Peer, Work::Wake, Work::Turn, Work::Append].into_iter().chain(of_clients) {
            model.0[free as usize] = Distribution::ZERO;
        }
        model
    }

    /// The cost model of a scenario. `dir`: the scenario's directory, to which file names are
    /// relative.
    ///
    /// # Errors
    /// [`ModelError`]
    pub fn new(settings: &ModelSettings, dir: &Path) -> Result<Self, ModelError> {
        let mut model = match settings.preset.as_deref() {
            None | Some("free") => Self::free(),
            Some("wu") => Self::wu(),
            Some(name) => {
                let path = dir.join(name);
                let text = std::fs::read_to_string(&path)
                    .map_err(|cause| ModelError::NoPreset { name: name.into(), cause })?;
                let inner: ModelSettings = toml::from_str(&text)
                    .map_err(|cause| ModelError::Malformed { path: path.clone(), cause })?;
                if inner.preset.is_some() {
                    return Err(ModelError::Nested(path));
                }
                let mut model = Self::free();
                model.take(&inner);
                model
            }
        };
        model.take(settings);
        Ok(model)
    }

    fn take(&mut self, settings: &ModelSettings) {
        // In the order of the types of work.
        let given: [&Option<Distribution>; Work::ALL.len()] = [
            &settings.create,
            &settings.remove,
            &settings.rename,
            &settings.lookup,
            &settings.setattr,
            &settings.readdir,
            &settings.entry,
            &settings.attributes,
            &settings.open,
            &settings.data,
            &settings.other,
            &settings.peer,
            &settings.client,
            &settings.client_message,
            &settings.wake,
            &settings.client_wake,
            &settings.turn,
            &settings.client_turn,
            &settings.append,
        ];
        for (own, given) in self.0.iter_mut().zip(given) {
            if let Some(given) = given {
                own.clone_from(given);
            }
        }
    }

    /// Cost of waking a processor after `idle`: it falls asleep gradually, so the cost is at most
    /// `idle`.
    pub fn wake(&self, work: Work, idle: Nanos, random: &mut Random) -> Nanos {
        if idle == Nanos::ZERO { Nanos::ZERO } else { self.cost(work).sample(random).min(idle) }
    }

    pub fn is_free(&self, work: Work) -> bool {
        *self.cost(work) == Distribution::ZERO
    }

    pub fn cost(&self, work: Work) -> &Distribution {
        &self.0[work as usize]
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn model(text: &str) -> Result<Model, ModelError> {
        Model::new(&toml::from_str(text).unwrap(), Path::new("."))
    }

    #[test]
    fn presets_can_be_changed() {
        let model = model("preset = \"wu\"\nlookup = \"1 ms\"").unwrap();
        assert_eq!(model.cost(Work::Create).mean(), Nanos(378_000));
        assert_eq!(model.cost(Work::Remove).mean(), Nanos(375_000));
        assert_eq!(model.cost(Work::Lookup).mean(), Nanos(1_000_000));
        assert_eq!(model.cost(Work::Open).mean(), Nanos(75_000));
        assert_eq!(Model::free().cost(Work::Create).mean(), Nanos::ZERO);
    }

    #[test]
    fn fields_and_kinds_are_in_the_same_order() {
        for (place, work) in Work::ALL.into_iter().enumerate() {
            assert_eq!(work as usize, place);
            let model = model(&format!("{} = \"7 us\"", work.name())).unwrap();
            assert_eq!(model.cost(work).mean(), Nanos(7000), "{}", work.name());
        }
    }

    #[test]
    fn a_model_can_be_a_file() {
        let dir = std::env::temp_dir().join(format!("espalier-sim-model-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("here.toml"), "create = { normal = [\"9 us\", \"1 us\"] }").unwrap();
        std::fs::write(dir.join("nested.toml"), "preset = \"wu\"").unwrap();
        let of =
            |name: &str| Model::new(&ModelSettings { preset: Some(name.into()), ..Default::default() }, &dir);
        assert_eq!(of("here.toml").unwrap().cost(Work::Create).mean(), Nanos(9000));
        assert!(matches!(of("nested.toml"), Err(ModelError::Nested(_))));
        let error = of("wo").unwrap_err().to_string();
        assert!(error.contains("\"wu\""), "{error}");
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
