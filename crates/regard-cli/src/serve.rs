//! `regard serve`: the page, for this machine only.

use crate::microscope::{VectorArgs, load};
use crate::options::{Common, Outcome, Unusable};
use crate::output::{note, print};
use anyhow::{Context, Result};
use clap::Args;
use regard_model::Model;
use regard_web::Server;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Attention live in the browser: type a text, watch every head, ablate one
///
/// The page is part of the program and makes no request to any other machine. Only this machine can reach it, with the token that is
/// printed. Ctrl-C stops it. Without a model it shows the small built-in one.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  regard serve
  regard serve built-in stories15M/model.bin SmolLM2-135M.Q4_1.gguf --no-open --port 8080")]
pub(crate) struct Serve {
    /// Models: files, folders, names in the local Hugging Face cache, or `built-in` [default: the small built-in model]
    #[arg(value_name = "MODEL")]
    models: Vec<PathBuf>,
    #[command(flatten)]
    vectors: VectorArgs,
    /// Port; 0 uses any free one
    #[arg(long, default_value_t = 0, value_name = "N")]
    port: u16,
    /// Print the address without opening a browser
    #[arg(long)]
    no_open: bool,
    #[command(flatten)]
    common: Common,
}

/// Opens a file with the desktop's program for it; false where there is none.
fn open(file: &Path) -> bool {
    let (program, before): (_, &[&str]) = if cfg!(target_os = "macos") {
        ("open", &[])
    } else if cfg!(windows) {
        ("rundll32", &["url.dll,FileProtocolHandler"])
    } else {
        ("xdg-open", &[])
    };
    Command::new(program).args(before).arg(file).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().is_ok()
}

/// A page that forwards to the address, in a directory that only this user can read, deleted with the guard. Arguments of programs can be
/// read by every user of the machine, so the token must not be in those of the browser.
fn redirect_file(address: &str) -> std::io::Result<(tempfile::TempDir, PathBuf)> {
    let (mut folder, mut options) = (tempfile::Builder::new(), std::fs::OpenOptions::new());
    folder.prefix("regard-serve-");
    options.write(true).create_new(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
        folder.permissions(std::fs::Permissions::from_mode(0o700));
        options.mode(0o600);
    }
    let folder = folder.tempdir()?;
    let path = folder.path().join("open.html");
    let page = format!(
        "<!doctype html><meta charset=\"utf-8\"><meta http-equiv=\"refresh\" content=\"0; url={address}\"><title>Regard</title>\n\
         <p><a href=\"{address}\">Open Regard</a></p>\n"
    );
    options.open(&path)?.write_all(page.as_bytes())?;
    Ok((folder, path))
}

impl Serve {
    pub(crate) fn run(self) -> Result<Outcome> {
        let bar = self.common.start("serve")?;
        let models: Vec<Model> = if self.models.is_empty() {
            vec![Model::built_in()?]
        } else {
            self.models.iter().map(|path| load(Some(path))).collect::<Result<_>>()?
        };
        let models = models.into_iter().map(|model| self.vectors.given(model)).collect::<Result<_>>()?;
        drop(bar);
        let server = Server::bind(models, self.port)
            .map_err(|e| Unusable(format!("cannot listen on port {}: {e}; leave --port out to use any free port", self.port)))?;
        let address = server.address().context("cannot read the server's address")?;
        let stop = server.stopper();
        ctrlc::set_handler(move || stop.stop()).context("cannot listen for Ctrl-C")?;
        if self.common.json {
            print(serde_json::json!({ "address": address }))?;
        } else {
            print(format_args!("{address}"))?;
        }
        if !self.common.quiet {
            note("open this address in a browser on this machine; Ctrl-C stops the server");
        }
        let redirect = if self.no_open { None } else { redirect_file(&address).ok() };
        if !self.no_open && !redirect.as_ref().is_some_and(|(_, file)| open(file)) {
            note("no browser could be opened");
        }
        server.serve().context("cannot start the server's threads; raise the limit of threads (ulimit -u)")?;
        Ok(Outcome::Done)
    }
}
