//! `regard serve`: the page, for this machine.

use crate::common::{Common, Outcome, Unusable};
use crate::output::{note, print};
use anyhow::{Context, Result};
use clap::Args;
use regard_model::Model;
use regard_web::Server;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Attention live in the browser: type a text, watch every head, take one away
///
/// The page is in the program, and asks nothing of any other machine. Only this machine can reach it, with the token that is printed; it stops with
/// Ctrl-C. Without a model it has the small one that comes with regard.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  regard serve
  regard serve stories15M/model.bin SmolLM2-135M.Q4_1.gguf --no-open --port 8080")]
pub(crate) struct Serve {
    /// Models: files, folders, or names in the local Hugging Face cache [default: the small model that comes with regard]
    #[arg(value_name = "MODEL")]
    models: Vec<PathBuf>,
    /// The port; 0 takes any that is free
    #[arg(long, default_value_t = 0, value_name = "N")]
    port: u16,
    /// Print the address, and do not open a browser
    #[arg(long)]
    no_open: bool,
    #[command(flatten)]
    common: Common,
}

/// The desktop's way to open an address; none is no failure.
fn open(address: &str) -> bool {
    let (program, before): (_, &[&str]) = if cfg!(target_os = "macos") {
        ("open", &[])
    } else if cfg!(windows) {
        ("rundll32", &["url.dll,FileProtocolHandler"])
    } else {
        ("xdg-open", &[])
    };
    Command::new(program).args(before).arg(address).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().is_ok()
}

impl Serve {
    pub(crate) fn run(self) -> Result<Outcome> {
        let bar = self.common.start("serve")?;
        let models = if self.models.is_empty() {
            vec![Model::built_in()?]
        } else {
            self.models.iter().map(Model::load).collect::<regard_model::Result<_>>()?
        };
        drop(bar);
        let server = Server::bind(models, self.port)
            .map_err(|e| Unusable(format!("cannot listen on port {}: {e}; leave --port out to take one that is free", self.port)))?;
        let address = server.address().context("cannot say where the server is")?;
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
        if !self.no_open && !open(&address) {
            note("no browser could be opened");
        }
        server.serve().context("the server failed")?;
        Ok(Outcome::Done)
    }
}
