//! Sending and receiving with errors that name the rank and the data.

use crate::error::{Error, Failure, Result};
use crate::exchange::{Exchange, Kind, Tag};

/// Texts that all ranks compare.
const AGREEMENT: Tag = (Kind::Agreement, 0);

/// An exchange whose errors say what was sent or received.
pub struct Comm<'x, X> {
    pub(crate) exchange: &'x X,
}

impl<'x, X: Exchange> Comm<'x, X> {
    /// On top of this exchange.
    pub fn new(exchange: &'x X) -> Self {
        Self { exchange }
    }

    pub(crate) fn rank(&self) -> usize {
        self.exchange.rank()
    }

    /// As [`Exchange::send`]; `what` is what this rank needs of the other, such as credit for the data.
    ///
    /// # Errors
    /// [`Error::Disconnected`].
    pub fn send(&self, to: usize, tag: Tag, bytes: Vec<u8>, what: impl Fn() -> String) -> Result<()> {
        self.exchange.send(to, tag, bytes).map_err(|failure| self.failed(to, failure, what()))
    }

    /// As [`Exchange::receive`].
    ///
    /// # Errors
    /// [`Error::Disconnected`] and [`Error::Timeout`].
    pub fn receive(&self, from: usize, tag: Tag, what: impl Fn() -> String) -> Result<Vec<u8>> {
        self.exchange.receive(from, tag).map_err(|failure| self.failed(from, failure, what()))
    }

    /// Receive a message of `expected` bytes.
    ///
    /// # Errors
    /// As [`Comm::receive`], and [`Error::Length`].
    pub fn receive_exactly(&self, from: usize, tag: Tag, expected: usize, what: impl Fn() -> String) -> Result<Vec<u8>> {
        let bytes = self.receive(from, tag, &what)?;
        let ([rank, from], got) = (self.names(from), bytes.len());
        if got == expected { Ok(bytes) } else { Err(Error::Length { rank, from, what: what(), got, expected }) }
    }

    /// This rank and another, as errors name them.
    pub(crate) fn names(&self, other: usize) -> [usize; 2] {
        [self.rank(), other].map(|rank| self.exchange.name(rank))
    }

    fn failed(&self, from: usize, failure: Failure, what: String) -> Error {
        let [rank, from] = self.names(from);
        match failure {
            Failure::Disconnected => Error::Disconnected { rank, from, what },
            Failure::Timeout(waited) => Error::Timeout { rank, from, what, waited },
        }
    }

    /// Compare a text with those of all other ranks. The error has the parts (separated by `"; "`) that differ.
    ///
    /// # Errors
    /// As [`Comm::receive`], and [`Error::Mismatch`].
    pub fn agree(&self, mine: &str) -> Result<()> {
        self.agree_or_refuse(Ok(mine.to_owned()))
    }

    /// As [`Comm::agree`], by ranks that may refuse the call: then every rank gets an error, and none waits for another.
    ///
    /// # Errors
    /// This rank's own, [`Error::Refused`], and those of [`Comm::agree`].
    pub fn agree_or_refuse(&self, mine: Result<String>) -> Result<()> {
        let others = || (0..self.exchange.ranks()).filter(|&other| other != self.rank());
        let (accepts, text) = mine.as_ref().map_or_else(|error| (false, error.to_string()), |text| (true, text.clone()));
        let message = [&[u8::from(accepts)], text.as_bytes()].concat();
        let what = || "its options of the call".to_owned();
        let exchanged = (|| {
            others().try_for_each(|other| self.send(other, AGREEMENT, message.clone(), what))?;
            others().map(|from| Ok((from, self.receive(from, AGREEMENT, what)?))).collect::<Result<Vec<_>>>()
        })();
        let mine = mine?;
        let texts = exchanged?;
        let text_of = |message: &[u8]| String::from_utf8_lossy(message.get(1..).unwrap_or_default()).into_owned();
        if let Some((from, message)) = texts.iter().find(|(_, message)| message.first() != Some(&1)) {
            let [rank, from] = self.names(*from);
            return Err(Error::Refused { rank, from, reason: text_of(message) });
        }
        if let Some((from, message)) = texts.iter().find(|(_, message)| message.get(1..) != Some(mine.as_bytes())) {
            let ([rank, from], theirs) = (self.names(*from), text_of(message));
            return Err(Error::Mismatch { rank, from, mine: parts_not_in(&mine, &theirs), theirs: parts_not_in(&theirs, &mine) });
        }
        Ok(())
    }
}

/// The parts of a text that another does not have.
fn parts_not_in(text: &str, other: &str) -> String {
    let others: Vec<_> = other.split("; ").collect();
    let parts: Vec<_> = text.split("; ").filter(|part| !others.contains(part)).collect();
    if parts.is_empty() { "no such option".to_owned() } else { parts.join("; ") }
}
