//! Any call that can be written down: shapes, strides, masks, biases and options. It is refused with an error, or every pass over it gives
//! what the judge gives. It does not panic. The calls and their judge are those of the tests.
//!
//! ```text
//! cd crates/regard && cargo +nightly fuzz run attention -- -len_control=0 -max_len=600
//! ```

#![no_main]

#[allow(dead_code, unused_imports)] // Of the tests' judge it needs most, not all.
#[path = "../../tests/suite/common/oracle/mod.rs"]
mod oracle;
#[allow(dead_code)] // Calls are described in the seeded test.
#[path = "../../tests/suite/common/random_call.rs"]
mod random_call;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| random_call::judge(bytes));
