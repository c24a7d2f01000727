//! What operations cost processors.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::dist::Distribution;
use crate::random::Random;
use crate::time::Nanos;

/// The table `[model]`: a preset, and what is to be different. Times are of a server's processor, for one request.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ModelSettings {
    /// `wu`, `free`, or the path of a file that has such a table: one that has been calibrated.
    pub preset: Option<String>,
    /// What makes a name: files, directories, links.
    pub create: Option<Distribution>,
    /// What removes one.
    pub remove: Option<Distribution>,
    pub rename: Option<Distribution>,
    /// What looks at a name or an inode.
    pub lookup: Option<Distribution>,
    /// What changes attributes.
    pub setattr: Option<Distribution>,
    /// A page of a listing, but for what is listed.
    pub readdir: Option<Distribution>,
    /// An entry of a listing, and its attributes if they are told with it.
    pub entry: Option<Distribution>,
    pub attributes: Option<Distribution>,
    /// What opens and closes files.
    pub open: Option<Distribution>,
    /// What reads and writes bytes.
    pub data: Option<Distribution>,
    /// What else a client asks.
    pub other: Option<Distribution>,
    /// What another metadata server says.
    pub peer: Option<Distribution>,
    /// Of a client's processor, for each call that a server is asked about.
    pub client: Option<Distribution>,
    /// Of a client's processor, for each message that comes to it.
    pub client_message: Option<Distribution>,
    /// Of a server's and of a client's processor besides, if it has nothing else to do: it sleeps, and has to be woken. At most as long
    /// as it has had nothing to do.
    pub wake: Option<Distribution>,
    pub client_wake: Option<Distribution>,
    /// Of a server's and of a client's processor besides, whenever it turns to a connection: it takes all that has come on that by then.
    pub turn: Option<Distribution>,
    pub client_turn: Option<Distribution>,
    /// Of a metadata server's processor, for each time that it writes to the journal's file, where nothing waits for a sync: of what has
    /// come on a connection together all changes at once.
    pub append: Option<Distribution>,
}

/// A kind of work of which a model knows the cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Work {
    Create,
    Remove,
    Rename,
    Lookup,
    SetAttr,
    ReadDir,
    Entry,
    Attributes,
    Open,
    Data,
    Other,
    Peer,
    Client,
    ClientMessage,
    Wake,
    ClientWake,
    Turn,
    ClientTurn,
    Append,
}

impl Work {
    pub const ALL: [Self; 19] = [
        Self::Create,
        Self::Remove,
        Self::Rename,
        Self::Lookup,
        Self::SetAttr,
        Self::ReadDir,
        Self::Entry,
        Self::Attributes,
        Self::Open,
        Self::Data,
        Self::Other,
        Self::Peer,
        Self::Client,
        Self::ClientMessage,
        Self::Wake,
        Self::ClientWake,
        Self::Turn,
        Self::ClientTurn,
        Self::Append,
    ];

    /// As scenarios and series name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Remove => "remove",
            Self::Rename => "rename",
            Self::Lookup => "lookup",
            Self::SetAttr => "setattr",
            Self::ReadDir => "readdir",
            Self::Entry => "entry",
            Self::Attributes => "attributes",
            Self::Open => "open",
            Self::Data => "data",
            Self::Other => "other",
            Self::Peer => "peer",
            Self::Client => "client",
            Self::ClientMessage => "client_message",
            Self::Wake => "wake",
            Self::ClientWake => "client_wake",
            Self::Turn => "turn",
            Self::ClientTurn => "client_turn",
            Self::Append => "append",
        }
    }
}

/// Of an entry of a listing, as measured of our server on a virtual machine.
const ENTRY: Nanos = Nanos(600);

/// The cost of each kind of work.
#[derive(Clone, Debug)]
pub struct Model([Distribution; Work::ALL.len()]);

/// Why there is no such model.
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
    /// Everything is free.
    pub fn free() -> Self {
        Self([const { Distribution::ZERO }; Work::ALL.len()])
    }

    /// PVFS on Palmetto (wu 4.3.3 to 4.3.6). What wu did not measure costs what a lookup does; what servers say to each
    /// other is free, as P2S maps are. Attributes in a listing cost what carns IV.A.3 has measured of 8 KiB files: 50,000 of them are
    /// opened and looked at in 0.660 s. What an entry costs PVFS nobody tells: it costs what it does here (`espalier sim calibrate`).
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

    /// The model of a scenario that lies in a directory: files are named from there.
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
        let ModelSettings {
            preset: _,
            create,
            remove,
            rename,
            lookup,
            setattr,
            readdir,
            entry,
            attributes,
            open,
            data,
            other,
            peer,
            client,
            client_message,
            wake,
            client_wake,
            turn,
            client_turn,
            append,
        } = settings;
        let given = [
            create,
            remove,
            rename,
            lookup,
            setattr,
            readdir,
            entry,
            attributes,
            open,
            data,
            other,
            peer,
            client,
            client_message,
            wake,
            client_wake,
            turn,
            client_turn,
            append,
        ];
        for (own, given) in self.0.iter_mut().zip(given) {
            if let Some(given) = given {
                own.clone_from(given);
            }
        }
    }

    /// What it costs to wake a processor that had nothing to do for so long: it falls asleep by and by, so that it never costs more than
    /// that.
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
