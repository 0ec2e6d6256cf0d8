//! Makes the list of experiments out of the modules of `src/experiments/mod.rs`: one line there, `pub mod sweep;`, is all that an
//! experiment needs besides its folder.

use std::fmt::Write as _;

fn main() {
    const LIST: &str = "src/experiments/mod.rs";
    println!("cargo::rerun-if-changed={LIST}");
    let source = std::fs::read_to_string(LIST).expect("the list of experiments can be read");
    let mut list = "/// Every experiment, in the order of the report.\npub static EXPERIMENTS: &[&dyn Entry] = &[\n".to_owned();
    let mut names = String::new();
    for module in source.lines().filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';')) {
        // `mask_training` has the experiment `MaskTraining`.
        let camel: String = module.split('_').map(|word| word[..1].to_uppercase() + &word[1..]).collect();
        writeln!(list, "    &{module}::{camel},").expect("a text takes any line");
        writeln!(names, "pub use {module}::*;").expect("a text takes any line");
    }
    let folder = std::env::var("OUT_DIR").expect("cargo says where");
    std::fs::write(std::path::Path::new(&folder).join("list.rs"), format!("{list}];\n{names}")).expect("the list can be written");
}
