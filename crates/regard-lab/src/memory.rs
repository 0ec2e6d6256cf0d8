//! What an experiment will hold, put against what the machine has, before anything is allocated: an allocation that fails ends the program
//! without a word.

use crate::error::{Error, Result};

/// What is asked for where the system does not say how much memory is free.
const UNKNOWN: u128 = 64 << 30;

/// Bytes that can still be had.
fn available() -> Option<u128> {
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = info.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.split_whitespace().next()?.parse::<u128>().ok().map(|kilobytes| 1024 * kilobytes)
}

/// Refuse what cannot fit.
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
