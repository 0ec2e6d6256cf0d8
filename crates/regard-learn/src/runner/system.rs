//! What systems do differently: process groups, signals, memory of other processes. `/proc` is Linux's; where it is missing, `ps` is used.
//!
//! On Windows there is no limit on memory, no line of an endless loop, and children of an answer are not ended with it.

#[cfg(unix)]
pub(super) use unix::*;
#[cfg(not(unix))]
pub(super) use without_signals::*;

#[cfg(unix)]
mod unix {
    use rustix::process::{Pid, Signal, kill_process, kill_process_group};
    use std::os::unix::process::{CommandExt, ExitStatusExt};
    use std::process::{Child, Command, ExitStatus};
    use std::time::Duration;

    pub(in crate::runner) type LocalStream = std::os::unix::net::UnixStream;

    /// The socket of a harness that runs already.
    pub(in crate::runner) fn connect(socket: &std::path::Path) -> std::io::Result<LocalStream> {
        LocalStream::connect(socket)
    }

    /// The child leads a process group of its own.
    pub(in crate::runner) fn set_group(command: &mut Command) {
        command.process_group(0);
    }

    pub(in crate::runner) fn signal(status: ExitStatus) -> Option<i32> {
        status.signal()
    }

    /// A Python runner writes its stack to its trace file.
    pub(in crate::runner) fn request_trace(child: &Child) -> Option<()> {
        kill_process(Pid::from_child(child), Signal::USR1).ok()
    }

    pub(in crate::runner) fn end_group(child: &Child) {
        let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
    }

    /// A process of `/proc`.
    struct Entry {
        pid: u32,
        parent: u32,
        group: u32,
        pages: u64,
    }

    impl Entry {
        /// The name, in brackets, may contain anything: numbers start after it. State, parent, group are the first three, resident pages
        /// the 22nd.
        fn of_stat(stat: &str) -> Option<Self> {
            let (start, rest) = stat.rsplit_once(')')?;
            let fields: Vec<&str> = rest.split_whitespace().collect();
            let number = |at: usize| fields.get(at)?.parse().ok();
            let pid = start.split_once(' ')?.0.parse().ok()?;
            Some(Self { pid, parent: number(1)?, group: number(2)?, pages: fields.get(21)?.parse().ok()? })
        }
    }

    /// All processes; `None` where there is no `/proc`.
    fn processes() -> Option<Vec<Entry>> {
        let folder = std::fs::read_dir("/proc").ok()?;
        let ids = folder.flatten().filter(|entry| entry.file_name().to_string_lossy().bytes().all(|b| b.is_ascii_digit()));
        let stats = ids.filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok());
        Some(stats.filter_map(|stat| Entry::of_stat(&stat)).collect())
    }

    /// Resident bytes of a process, of its group, and of what it started.
    pub(in crate::runner) fn resident(pid: u32) -> u64 {
        let Some(mut others) = processes() else { return resident_by_ps(pid) };
        let (mut family, mut pages) = (std::collections::HashSet::from([pid]), 0);
        loop {
            let before = others.len();
            others.retain(|entry| {
                let belongs = entry.group == pid || family.contains(&entry.pid) || family.contains(&entry.parent);
                if belongs {
                    family.insert(entry.pid);
                    pages += entry.pages;
                }
                !belongs
            });
            if others.len() == before {
                return pages * rustix::param::page_size() as u64;
            }
        }
    }

    fn resident_by_ps(pid: u32) -> u64 {
        let output = Command::new("ps").args(["-o", "rss=", "-p", &pid.to_string()]).output();
        output.ok().and_then(|o| String::from_utf8_lossy(&o.stdout).trim().parse::<u64>().ok()).unwrap_or(0) * 1024
    }

    /// Processor time of a process and of its group, ended children included; `None` where it cannot be read.
    pub(in crate::runner) fn processor_time(pid: u32) -> Option<Duration> {
        let folder = std::fs::read_dir("/proc").ok()?;
        // Group is the third field after the name; times of the process and of its children are the 12th to the 15th.
        let ticks = |stat: &str| -> Option<u64> {
            let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
            let own = stat.split_once(' ')?.0.parse() == Ok(pid) || fields.get(2)?.parse() == Ok(pid);
            own.then(|| fields.get(11..15)?.iter().map(|word| word.parse::<u64>().ok()).sum()).flatten()
        };
        let ids = folder.flatten().filter(|entry| entry.file_name().to_string_lossy().bytes().all(|b| b.is_ascii_digit()));
        let stats = ids.filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok());
        let total: u64 = stats.filter_map(|stat| ticks(&stat)).sum();
        Some(Duration::from_secs_f64(total as f64 / rustix::param::clock_ticks_per_second() as f64))
    }

    /// How long a process has been ready to run without running: the second number of `schedstat`, where there is one.
    pub(in crate::runner) fn queued(pid: u32) -> Duration {
        let text = std::fs::read_to_string(format!("/proc/{pid}/schedstat")).unwrap_or_default();
        Duration::from_nanos(text.split_whitespace().nth(1).and_then(|word| word.parse().ok()).unwrap_or(0))
    }

    /// Ends what the runner started and what has left its group: everything that inherited the variable, `NAME=value`.
    pub(in crate::runner) fn end_marked(variable: &str) {
        let Ok(folder) = std::fs::read_dir("/proc") else { return };
        for entry in folder.flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw) else { continue };
            let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
            if environment.split(|b| *b == 0).any(|word| word == variable.as_bytes()) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }

    /// Running runners. While there are any, what their processes leave behind becomes a child of this process.
    #[cfg(target_os = "linux")]
    static RUNNERS: std::sync::Mutex<std::collections::BTreeSet<u32>> = std::sync::Mutex::new(std::collections::BTreeSet::new());

    #[cfg(target_os = "linux")]
    fn runners() -> std::sync::MutexGuard<'static, std::collections::BTreeSet<u32>> {
        RUNNERS.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Start a runner.
    #[cfg(target_os = "linux")]
    pub(in crate::runner) fn started(spawn: impl FnOnce() -> std::io::Result<Child>) -> std::io::Result<Child> {
        let mut runners = runners();
        let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
        let child = spawn()?;
        runners.insert(child.id());
        Ok(child)
    }

    /// A runner has ended.
    #[cfg(target_os = "linux")]
    pub(in crate::runner) fn ended(pid: u32) {
        let mut runners = runners();
        if runners.remove(&pid) && runners.is_empty() {
            let _ = rustix::process::set_child_subreaper(None);
        }
    }

    /// Whether a process can gain no privileges: Landlock needs that, and all that a confined program starts inherits it.
    #[cfg(target_os = "linux")]
    fn is_confined(pid: &str) -> bool {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        status.lines().filter_map(|line| line.strip_prefix("NoNewPrivs:")).any(|value| value.trim() == "1")
    }

    /// End the processes that confined programs left behind: children of this process that it has not started.
    #[cfg(target_os = "linux")]
    pub(in crate::runner) fn end_orphans() {
        // What they start meanwhile is found in the next round.
        const ROUNDS: usize = 100;
        let own = std::process::id();
        for _ in 0..ROUNDS {
            let runners = runners();
            let children = processes().unwrap_or_default().into_iter().filter(|entry| entry.parent == own && !runners.contains(&entry.pid));
            let orphans: Vec<u32> = children.map(|entry| entry.pid).filter(|pid| is_confined(&pid.to_string())).collect();
            // Where this process itself is confined so, its own children look the same.
            if orphans.is_empty() || is_confined("self") {
                return;
            }
            for pid in orphans.into_iter().filter_map(|pid| Pid::from_raw(pid.cast_signed())) {
                let _ = kill_process(pid, Signal::KILL);
                let _ = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty());
            }
        }
    }

    #[cfg(not(target_os = "linux"))]
    pub(in crate::runner) fn started(spawn: impl FnOnce() -> std::io::Result<Child>) -> std::io::Result<Child> {
        spawn()
    }

    #[cfg(not(target_os = "linux"))]
    pub(in crate::runner) fn ended(_: u32) {}

    #[cfg(not(target_os = "linux"))]
    pub(in crate::runner) fn end_orphans() {}
}

#[cfg(not(unix))]
mod without_signals {
    use std::process::{Child, Command, ExitStatus};
    use std::time::Duration;

    pub(in crate::runner) type LocalStream = std::net::TcpStream;

    pub(in crate::runner) fn connect(_: &std::path::Path) -> std::io::Result<LocalStream> {
        Err(std::io::Error::new(std::io::ErrorKind::Unsupported, "there are no Unix sockets on this system"))
    }

    pub(in crate::runner) fn set_group(_: &mut Command) {}

    pub(in crate::runner) fn signal(_: ExitStatus) -> Option<i32> {
        None
    }

    pub(in crate::runner) fn request_trace(_: &Child) -> Option<()> {
        None
    }

    pub(in crate::runner) fn end_group(_: &Child) {}

    pub(in crate::runner) fn resident(_: u32) -> u64 {
        0
    }

    pub(in crate::runner) fn queued(_: u32) -> Duration {
        Duration::ZERO
    }

    pub(in crate::runner) fn processor_time(_: u32) -> Option<Duration> {
        None
    }

    pub(in crate::runner) fn end_marked(_: &str) {}

    pub(in crate::runner) fn started(spawn: impl FnOnce() -> std::io::Result<Child>) -> std::io::Result<Child> {
        spawn()
    }

    pub(in crate::runner) fn ended(_: u32) {}

    pub(in crate::runner) fn end_orphans() {}
}
