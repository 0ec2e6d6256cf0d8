//! Checks the memory of an experiment before anything is allocated: a failed allocation would abort the program.

use crate::error::{Error, Result};

/// Limit where the system does not report free memory.
const UNKNOWN: u128 = 64 << 30;

/// Bytes of free memory, where the system reports them.
pub fn available() -> Option<u128> {
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = info.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.split_whitespace().next()?.parse::<u128>().ok().map(|kilobytes| 1024 * kilobytes)
}

/// [`Error::Memory`] if it does not fit.
pub(crate) fn check(what: &str, bytes: u128) -> Result<()> {
    let free = available().unwrap_or(UNKNOWN);
    if bytes <= free { Ok(()) } else { Err(Error::Memory { what: what.to_owned(), needed: gigabytes(bytes), free: gigabytes(free) }) }
}

fn gigabytes(bytes: u128) -> String {
    format!("{:.1} GB", bytes as f64 / 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fits_is_let_through_and_what_does_not_is_refused_in_numbers() {
        assert!(check("nothing", 0).is_ok());
        let error = check("all of it", 1 << 80).unwrap_err().to_string();
        assert!(error.contains("all of it") && error.contains("1208925819614629.2 GB"), "{error}");
    }
}
