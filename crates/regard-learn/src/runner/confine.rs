//! Starts a program that may write only where it is told to, where the kernel has Landlock.

use std::path::Path;
use std::process::{Child, Command};

/// Starts `command`. On Linux with Landlock the program and its children can read everything and write only below `writable` (and to
/// `/dev/null` and `/dev/shm`), and cannot signal or trace processes outside. Elsewhere nothing is restricted.
///
/// The restriction is that of a thread, which the child inherits: the thread ends here, the judge itself stays unrestricted.
pub(super) fn spawn(command: &mut Command, writable: &[&Path]) -> std::io::Result<Child> {
    let start = || {
        // Best effort: an old kernel, or a container that forbids it, has no Landlock.
        let _ = restrict(writable);
        command.spawn()
    };
    std::thread::scope(|scope| scope.spawn(start).join()).unwrap_or_else(|_| Err(std::io::Error::other("the starting thread panicked")))
}

#[cfg(target_os = "linux")]
fn restrict(writable: &[&Path]) -> Result<(), landlock::RulesetError> {
    use landlock::{ABI, AccessFs, Ruleset, RulesetAttr, RulesetCreatedAttr, Scope, path_beneath_rules};
    let write = AccessFs::from_write(ABI::V3);
    let shared = ["/dev/null", "/dev/shm"].map(Path::new);
    Ruleset::default()
        .handle_access(write)?
        .scope(Scope::Signal)?
        .create()?
        .add_rules(path_beneath_rules(writable.iter().copied().chain(shared), write))?
        .restrict_self()?;
    Ok(())
}

#[cfg(not(target_os = "linux"))]
#[expect(clippy::unnecessary_wraps, reason = "the same signature as with Landlock")]
fn restrict(_: &[&Path]) -> Result<(), std::convert::Infallible> {
    Ok(())
}
