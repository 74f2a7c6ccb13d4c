//! Decides what the command line and its variables mean, and which exit code an outcome has.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::controller::{End, Outcome};
use crate::model::Refusal;
use crate::model::status::{ServerState, Status};

/// Keeps an agent's MCP servers in the state that its settings ask for, behind one endpoint that never restarts.
#[derive(Debug, Parser)]
#[command(version, about, max_term_width = 100)]
pub struct Cli {
    #[command(flatten)]
    pub options: Options,
    #[command(subcommand)]
    pub command: Option<Command>,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show what runs, what does not and why, from the running sidecar of this workspace
    Status {
        /// Only this server
        name: Option<String>,
    },
    /// Validate the files that are read here, or the given ones: exit 0 or 3
    Check { files: Vec<PathBuf> },
    /// Show what a run would open, close, replace and refuse now, and why
    Plan {
        /// Exit with 10 when anything would change
        #[arg(long)]
        exit_code: bool,
    },
    /// Print the JSON Schema (draft 07) of the files
    Schema,
    /// Serve a small MCP server over stdin and stdout, for trying things out
    DemoServer,
}

/// Every option is global: it may stand before or after a command.
#[derive(Debug, Args)]
pub struct Options {
    /// The project's directory
    #[arg(
        long,
        global = true,
        value_name = "DIR",
        env = "MCP_RECONCILER_WORKSPACE",
        default_value = ".",
        help_heading = "Sources"
    )]
    pub workspace: PathBuf,
    /// A settings file of the operator's, or a directory of them; never gated; may be repeated
    #[arg(long, global = true, value_name = "PATH", env = "MCP_RECONCILER_CONFIG", help_heading = "Sources")]
    pub config: Vec<PathBuf>,
    /// The directory of the user's settings.json [default: $QWEN_HOME, else ~/.qwen]
    #[arg(
        long,
        global = true,
        value_name = "DIR",
        env = "MCP_RECONCILER_SETTINGS_HOME",
        help_heading = "Sources"
    )]
    pub settings_home: Option<PathBuf>,
    /// The only servers that may connect, whatever the settings say: names or globs, by commas; "" allows none
    #[arg(
        long,
        global = true,
        value_name = "NAMES",
        env = "MCP_RECONCILER_ALLOWED_MCP_SERVER_NAMES",
        value_delimiter = ',',
        help_heading = "Sources"
    )]
    pub allowed_mcp_server_names: Option<Vec<String>>,
    /// How long files must be quiet before they are read (at most 2 s after the first event)
    #[arg(long, global = true, value_name = "TIME", env = "MCP_RECONCILER_SETTLE", default_value = "300ms", value_parser = duration, help_heading = "Sources")]
    pub settle: Duration,
    /// How often everything is read again when no event comes
    #[arg(long, global = true, value_name = "TIME", env = "MCP_RECONCILER_RESYNC", default_value = "30s", value_parser = duration, help_heading = "Sources")]
    pub resync: Duration,

    /// Where agents connect, at /mcp; beyond loopback a token is needed
    #[arg(
        long,
        global = true,
        value_name = "ADDRESS",
        env = "MCP_RECONCILER_LISTEN",
        default_value = "127.0.0.1:7411",
        help_heading = "Endpoints"
    )]
    pub listen: SocketAddr,
    /// Where metrics, probes and the status are
    #[arg(
        long,
        global = true,
        value_name = "ADDRESS",
        env = "MCP_RECONCILER_OPS_LISTEN",
        default_value = "127.0.0.1:7412",
        help_heading = "Endpoints"
    )]
    pub ops_listen: SocketAddr,
    /// A file with the bearer token that agents must send
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        env = "MCP_RECONCILER_TOKEN_FILE",
        help_heading = "Endpoints"
    )]
    pub token_file: Option<PathBuf>,
    /// Host names that requests may carry besides IP literals and localhost, by commas
    #[arg(
        long,
        global = true,
        value_name = "NAMES",
        env = "MCP_RECONCILER_ALLOWED_HOSTS",
        value_delimiter = ',',
        help_heading = "Endpoints"
    )]
    pub allowed_hosts: Vec<String>,
    /// How long an agent's list waits for servers in their first attempt, from the first pass on
    #[arg(long, global = true, value_name = "TIME", env = "MCP_RECONCILER_LIST_WAIT", default_value = "3s", value_parser = duration, help_heading = "Endpoints")]
    pub list_wait: Duration,

    /// Variables to pass to child processes besides the base environment, by commas
    #[arg(
        long,
        global = true,
        value_name = "NAMES",
        env = "MCP_RECONCILER_PASS_ENV",
        value_delimiter = ',',
        help_heading = "Servers"
    )]
    pub pass_env: Vec<String>,
    /// How long calls in flight may take to finish when their server goes
    #[arg(long, global = true, value_name = "TIME", env = "MCP_RECONCILER_DRAIN", default_value = "10s", value_parser = duration, help_heading = "Servers")]
    pub drain: Duration,
    /// How long a shutdown may take in all
    #[arg(long, global = true, value_name = "TIME", env = "MCP_RECONCILER_GRACE", default_value = "25s", value_parser = duration, help_heading = "Servers")]
    pub grace: Duration,

    /// Converge once, print a report and leave nothing running
    #[arg(long, global = true, env = "MCP_RECONCILER_RECONCILE_ONCE", help_heading = "One convergence")]
    pub reconcile_once: bool,
    /// How long one convergence may take
    #[arg(long, global = true, value_name = "TIME", env = "MCP_RECONCILER_TIMEOUT", default_value = "60s", value_parser = duration, help_heading = "One convergence")]
    pub timeout: Duration,
    /// Count a server that waits for approval as failed
    #[arg(long, global = true, env = "MCP_RECONCILER_FAIL_ON_PENDING", help_heading = "One convergence")]
    pub fail_on_pending: bool,

    /// How reports are printed
    #[arg(
        long,
        global = true,
        env = "MCP_RECONCILER_OUTPUT",
        default_value = "text",
        help_heading = "Output"
    )]
    pub output: Output,
    /// How logs are printed, on stderr
    #[arg(
        long,
        global = true,
        env = "MCP_RECONCILER_LOG_FORMAT",
        default_value = "text",
        help_heading = "Output"
    )]
    pub log_format: LogFormat,
    /// What is logged: error, warn, info, debug or trace, or directives such as info,mcp_reconciler=debug
    #[arg(
        long,
        global = true,
        value_name = "LEVEL",
        env = "MCP_RECONCILER_LOG_LEVEL",
        default_value = "info",
        help_heading = "Output"
    )]
    pub log_level: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    Text,
    Json,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    Text,
    Json,
}

impl Options {
    /// The start-up flag's names, without blanks: an empty value allows nothing.
    pub fn ceiling(&self) -> Option<Vec<String>> {
        self.allowed_mcp_server_names.as_ref().map(|names| not_blank(names))
    }

    /// # Errors
    /// What the options together do not allow, for the person who typed them.
    pub fn validate(&self) -> Result<(), String> {
        if !self.listen.ip().is_loopback() && self.token_file.is_none() && !self.reconcile_once {
            return Err(format!(
                "--listen {}: an address beyond loopback needs --token-file, or everybody on the network could use \
                 your servers",
                self.listen
            ));
        }
        Ok(())
    }
}

/// The entries that are not blank, trimmed.
pub fn not_blank(names: &[String]) -> Vec<String> {
    names.iter().map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect()
}

/// A time with its unit, such as `300ms` or `8s`; `0` needs none.
fn duration(text: &str) -> Result<Duration, String> {
    match text.trim() {
        "0" => Ok(Duration::ZERO),
        text => humantime::parse_duration(text).map_err(|error| format!("{error}; write 300ms, 8s or 2m")),
    }
}

/// How one convergence went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnceResult {
    Converged,
    /// A server failed, or its entry cannot be used.
    Partial,
    Timeout,
    /// A source is bad, or one that was named is not there.
    Invalid,
    Error,
}

impl OnceResult {
    /// The result of `outcome`: the first that holds.
    pub fn of(outcome: &Outcome, fail_on_pending: bool) -> OnceResult {
        match outcome.end {
            End::Failed | End::Aborted | End::Stopped => OnceResult::Error,
            End::Settled | End::TimedOut if is_invalid(&outcome.status) => OnceResult::Invalid,
            End::TimedOut => OnceResult::Timeout,
            End::Settled if has_failures(&outcome.status, fail_on_pending) => OnceResult::Partial,
            End::Settled => OnceResult::Converged,
        }
    }

    pub const fn as_str(self) -> &'static str {
        match self {
            OnceResult::Converged => "converged",
            OnceResult::Partial => "partial",
            OnceResult::Timeout => "timeout",
            OnceResult::Invalid => "invalid",
            OnceResult::Error => "error",
        }
    }

    pub const fn exit_code(self) -> u8 {
        match self {
            OnceResult::Converged => 0,
            OnceResult::Error => 1,
            OnceResult::Invalid => 3,
            OnceResult::Partial => 4,
            OnceResult::Timeout => 5,
        }
    }
}

fn is_invalid(status: &Status) -> bool {
    status.sources.iter().any(|source| source.error.is_some())
}

fn has_failures(status: &Status, fail_on_pending: bool) -> bool {
    let mut failing = vec![Refusal::Invalid.as_str(), Refusal::Unsupported.as_str()];
    failing.extend(fail_on_pending.then_some(Refusal::PendingApproval.as_str()));
    status.servers.iter().any(|server| match server.state {
        ServerState::Connected => false,
        ServerState::Refused => server.reason.as_deref().is_some_and(|reason| failing.contains(&reason)),
        ServerState::Connecting | ServerState::Waiting | ServerState::Draining | ServerState::Closing => true,
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_well_formed_and_every_option_has_its_variable() {
        let command = Cli::command();
        command.clone().debug_assert();
        for arg in command.get_arguments().filter(|arg| !matches!(arg.get_id().as_str(), "help" | "version"))
        {
            let variable = arg.get_env().map(|env| env.to_string_lossy().into_owned());
            let expected = format!("MCP_RECONCILER_{}", arg.get_id().as_str().to_uppercase());
            assert_eq!(variable, Some(expected));
        }
    }

    #[test]
    fn durations_have_units_except_zero() {
        assert_eq!(duration("300ms"), Ok(Duration::from_millis(300)));
        assert_eq!(duration("0"), Ok(Duration::ZERO));
        assert!(duration("5").is_err());
    }

    #[test]
    fn an_empty_list_of_allowed_names_allows_nothing_and_none_is_no_ceiling() {
        let ceiling = |args: &[&str]| Cli::parse_from([&["mcp-reconciler"], args].concat()).options.ceiling();
        assert_eq!(ceiling(&[]), None);
        assert_eq!(ceiling(&["--allowed-mcp-server-names", ""]), Some(vec![]));
        assert_eq!(ceiling(&["--allowed-mcp-server-names", "a, b"]), Some(vec!["a".into(), "b".into()]));
    }

    #[test]
    fn an_address_beyond_loopback_needs_a_token() {
        let valid =
            |args: &[&str]| Cli::parse_from([&["mcp-reconciler"], args].concat()).options.validate().is_ok();
        assert!(valid(&[]));
        assert!(!valid(&["--listen", "0.0.0.0:7411"]));
        assert!(valid(&["--listen", "0.0.0.0:7411", "--token-file", "/t"]));
    }
}
