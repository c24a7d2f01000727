/// Why a journal operation failed.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    #[error("cannot {operation} the journal: {cause}")]
    Io { operation: &'static str, cause: std::io::Error },
    #[error("the journal is full: {needed} bytes are needed, {free} are free until the next checkpoint")]
    Full { needed: u64, free: u64 },
    /// Events that were durable are missing.
    #[error("the journal is damaged at position {position}: {why}")]
    Corrupt { position: u64, why: &'static str },
    #[error("a sync of the journal failed before: the store must be opened again")]
    Failed,
    #[error("the journal is open for reading only")]
    ReadOnly,
    #[error("the journal must be replayed before it is written")]
    NotReplayed,
    #[error("the journal's header is damaged, or the file is not a journal")]
    NoJournal,
    #[error("the journal has {length} bytes instead of {expected}: it was cut off, or copied incompletely")]
    Truncated { length: u64, expected: u64 },
    #[error("the journal is another store's")]
    Foreign,
}
