//! MPI with the smallest bound of tags that its standard allows: all other steps run with it.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::mpirun_with;
use crate::command::{command, run, target_dir};

/// The layer that refuses tags above 32,767.
pub(super) fn layer() -> PathBuf {
    target_dir().join("cluster-tags/libtag_bound.so")
}

/// Build the layer, and see that it refuses a tag that the library itself allows.
pub(super) fn build() -> Result<()> {
    let layer = layer();
    let folder = layer.parent().context("it has a folder")?;
    std::fs::create_dir_all(folder)?;
    let compile = |name: &str, source: &str, arguments: &[&str], to: &Path| -> Result<()> {
        let file = folder.join(name);
        std::fs::write(&file, source)?;
        let mut mpicc = command("mpicc", arguments);
        mpicc.arg("-o").arg(to).arg(file);
        run(mpicc)
    };
    let program = folder.join("high_tag");
    compile("tag_bound.c", include_str!("tag_bound.c"), &["-shared", "-fPIC", "-O1"], &layer)?;
    compile("high_tag.c", include_str!("high_tag.c"), &["-O1"], &program)?;
    let output = |mut command: Command| command.output().context("cannot start mpirun");
    ensure!(output(mpirun_with(None, 1, &program))?.status.success(), "this MPI library itself refuses tag 32768");
    let refused = output(mpirun_with(Some(&layer), 1, &program))?;
    let complained = String::from_utf8_lossy(&refused.stderr);
    ensure!(!refused.status.success() && complained.contains("tag bound: MPI_Isend with tag 32768"), "tag 32768 passed:\n{complained}");
    println!("    tag 32768 is refused, as other MPI libraries may");
    Ok(())
}
