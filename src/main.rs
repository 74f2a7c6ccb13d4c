//! Decides nothing: arguments, runtime, exit code.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{CommandFactory, Parser};
use mcp_reconciler::cli::{Cli, Command, LogFormat, OnceResult, Options, Output};
use mcp_reconciler::command::{self, check, plan};
use mcp_reconciler::controller::admit::Own;
use mcp_reconciler::controller::connector::Source;
use mcp_reconciler::controller::resolve::{Desired, resolve};
use mcp_reconciler::controller::snapshot::Snapshot;
use mcp_reconciler::controller::{End, Outcome, Signal};
use mcp_reconciler::model::{Moment, Root};
use mcp_reconciler::sinks::run_file::Run;
use mcp_reconciler::sinks::{run_file, status_text};
use mcp_reconciler::sources::schema::schema;
use mcp_reconciler::sources::text;
use mcp_reconciler::{Process, demo_server, read_token, run};
use serde_json::Value;
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};
use tokio::sync::mpsc;
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let cli = Cli::parse();
    if let Err(message) = cli.options.validate() {
        Cli::command().error(clap::error::ErrorKind::ArgumentConflict, message).exit();
    }
    if let Err(message) = start_logging(&cli.options) {
        Cli::command().error(clap::error::ErrorKind::ValueValidation, message).exit();
    }
    // The work is waiting for others: more threads than this only cost memory.
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&format!("the runtime cannot be started: {error}")),
    };
    let code = runtime.block_on(command(cli));
    // A read that hangs in the kernel must not hold the exit up.
    runtime.shutdown_timeout(Duration::from_millis(100));
    code
}

async fn command(cli: Cli) -> ExitCode {
    let process = match process(&cli.options) {
        Ok(process) => process,
        Err(error) => return fail(&error),
    };
    match cli.command {
        None => reconcile(&cli.options, process).await,
        Some(Command::Status { name }) => match status(&cli.options, &process, name.as_deref()).await {
            Ok(text) => print(&text),
            Err(error) => fail(&error),
        },
        Some(Command::Check { files }) => check(&cli.options, &process, &files),
        Some(Command::Plan { exit_code }) => plan(&cli.options, &process, exit_code).await,
        Some(Command::Schema) => print(&format!("{:#}\n", schema())),
        Some(Command::DemoServer) => match demo_server::run(tokio::io::stdin(), tokio::io::stdout()).await {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail(&error.to_string()),
        },
    }
}

/// The run itself: until a signal, or one convergence.
async fn reconcile(options: &Options, process: Process) -> ExitCode {
    // The handlers stand before anything can be started that a signal would have to stop.
    let signals = match signals() {
        Ok(signals) => signals,
        Err(error) => return fail(&format!("signals cannot be handled: {error}")),
    };
    let outcome = match run(options, process, signals).await {
        Ok(outcome) => outcome,
        Err(error) => return fail(&error.to_string()),
    };
    if !options.reconcile_once {
        return match outcome.end {
            End::Stopped | End::Settled | End::TimedOut => ExitCode::SUCCESS,
            End::Aborted | End::Failed => ExitCode::FAILURE,
        };
    }
    let result = OnceResult::of(&outcome, options.fail_on_pending);
    print(&once_report(&outcome, result, options.output));
    ExitCode::from(result.exit_code())
}

fn once_report(outcome: &Outcome, result: OnceResult, output: Output) -> String {
    let mut document = serde_json::to_value(&outcome.status).unwrap_or_default();
    if let Value::Object(members) = &mut document {
        members.insert("result".to_owned(), result.as_str().into());
        members.insert("duration_seconds".to_owned(), outcome.took.as_secs_f64().into());
    }
    match output {
        Output::Json => format!("{document:#}\n"),
        Output::Text => {
            let table = status_text::render(&document, None).unwrap_or_default();
            format!("{table}{} after {:.1} s\n", result.as_str(), outcome.took.as_secs_f64())
        }
    }
}

/// Validates the files, and contacts nothing.
fn check(options: &Options, process: &Process, files: &[PathBuf]) -> ExitCode {
    let sources = command::sources(process.sources(options));
    let findings = match files.is_empty() {
        true => check::findings(&sources.read()),
        false => files.iter().flat_map(|file| check::of_layer(&sources.read_one(file))).collect(),
    };
    let text = match options.output {
        Output::Json => format!("{:#}\n", serde_json::json!(findings)),
        Output::Text => {
            let texts = findings.iter().filter_map(|f| Some((f.path.clone(), text::read(&f.path).ok()??)));
            let summary = match findings.is_empty() {
                true => "nothing to tell\n".to_owned(),
                false => format!("{} to look at\n", findings.len()),
            };
            check::render(&findings, &texts.collect(), is_coloured(&io::stdout())) + &summary
        }
    };
    match print(&text) {
        ExitCode::SUCCESS if !check::passes(&findings) => ExitCode::from(OnceResult::Invalid.exit_code()),
        code => code,
    }
}

/// Compares what the sources ask for with what runs, and contacts no server.
async fn plan(options: &Options, process: &Process, exit_code: bool) -> ExitCode {
    let snapshot = Snapshot::advance(None, command::sources(process.sources(options)).read(), Moment::START);
    let running = match find_run(process) {
        Ok(run) => match ask_status(options, &run).await {
            Ok(document) => Some((run, document)),
            Err(error) => return fail(&error),
        },
        Err(_) => None,
    };
    let listen = running
        .as_ref()
        .map_or([options.listen, options.ops_listen], |(run, _)| [run.listen, run.ops_listen]);
    let own = Own { listen: listen.into(), ..Own::default() };
    let desired = resolve(&snapshot, options.ceiling().as_deref(), &own, &Desired::default());
    let steps = plan::steps(&desired, running.as_ref().map(|(_, document)| document));
    for error in snapshot.errors() {
        // Nobody is left to tell when stderr is closed.
        let _ = writeln!(io::stderr(), "mcp-reconciler: {error}");
    }
    let printed = print(&match options.output {
        Output::Json => format!("{:#}\n", serde_json::json!(steps)),
        Output::Text => plan::render(&steps),
    });
    match printed {
        ExitCode::SUCCESS if snapshot.has_errors() => ExitCode::from(OnceResult::Invalid.exit_code()),
        ExitCode::SUCCESS if exit_code && plan::changes(&steps) => ExitCode::from(10),
        code => code,
    }
}

/// Finds the running sidecar of this workspace.
fn find_run(process: &Process) -> Result<Run, String> {
    let runtime_dir = process.environment.get("XDG_RUNTIME_DIR").map(Path::new);
    run_file::read(&run_file::directory(runtime_dir), &process.root).map_err(|error| error.to_string())
}

/// The status document of a running sidecar.
async fn ask_status(options: &Options, run: &Run) -> Result<Value, String> {
    let client = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(10)).build();
    let mut request =
        client.map_err(|error| error.to_string())?.get(format!("http://{}/status", run.ops_listen));
    if let Some(path) = &options.token_file {
        request = request.bearer_auth(read_token(path).map_err(|error| error.to_string())?);
    }
    let answer = async { request.send().await?.error_for_status()?.text().await };
    let text =
        answer.await.map_err(|error| format!("the sidecar (pid {}) does not answer: {error}", run.pid))?;
    serde_json::from_str(&text).map_err(|error| format!("the sidecar's answer: {error}"))
}

/// Asks the running sidecar of this workspace.
async fn status(options: &Options, process: &Process, only: Option<&str>) -> Result<String, String> {
    let document = ask_status(options, &find_run(process)?).await?;
    let unknown = || format!("no server is called {}", only.unwrap_or_default());
    match (options.output, only) {
        (Output::Text, _) => status_text::render(&document, only).ok_or_else(unknown),
        (Output::Json, None) => Ok(format!("{document:#}\n")),
        (Output::Json, Some(name)) => {
            let servers = document["servers"].as_array().into_iter().flatten();
            let server = servers.into_iter().find(|server| server["name"] == name).ok_or_else(unknown)?;
            Ok(format!("{server:#}\n"))
        }
    }
}

/// Collects what the process gives: variables and directories.
fn process(options: &Options) -> Result<Process, String> {
    let mut environment: BTreeMap<String, String> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    if let Some(own) = std::env::current_exe().ok().and_then(|path| path.into_os_string().into_string().ok())
    {
        // So that an example can name this very program.
        environment.entry("MCP_RECONCILER_EXE".to_owned()).or_insert(own);
    }
    let here = std::env::current_dir().map_err(|error| format!("the current directory: {error}"))?;
    let root = Root::new(&here, &options.workspace);
    if !root.path().is_dir() {
        return Err(format!("--workspace {root}: no such directory"));
    }
    let home = std::env::home_dir().filter(|home| home.is_absolute());
    let settings_home = options
        .settings_home
        .clone()
        .or_else(|| environment.get("QWEN_HOME").filter(|dir| !dir.is_empty()).map(PathBuf::from))
        .or_else(|| home.as_ref().map(|home| home.join(".qwen")))
        .ok_or("no home directory is known; give --settings-home")?;
    Ok(Process { environment, settings_home: here.join(settings_home), root, home })
}

/// Turns the process's signals into the loop's.
fn signals() -> io::Result<mpsc::Receiver<Signal>> {
    let (sender, receiver) = mpsc::channel(8);
    for (kind, meaning) in [
        (SignalKind::terminate(), Signal::Terminate),
        (SignalKind::interrupt(), Signal::Terminate),
        (SignalKind::hangup(), Signal::Reload),
    ] {
        let stream = signal(kind)?;
        tokio::spawn(forward(stream, meaning, sender.clone()));
    }
    Ok(receiver)
}

async fn forward(mut stream: Stream, meaning: Signal, sender: mpsc::Sender<Signal>) {
    while stream.recv().await.is_some() {
        if sender.send(meaning).await.is_err() {
            return;
        }
    }
}

fn is_coloured(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Logs go to stderr: stdout is for reports.
fn start_logging(options: &Options) -> Result<(), String> {
    let filter = EnvFilter::try_new(&options.log_level).map_err(|error| format!("--log-level: {error}"))?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(is_coloured(&io::stderr()));
    match options.log_format {
        LogFormat::Text => builder.init(),
        LogFormat::Json => builder.json().flatten_event(true).with_current_span(false).init(),
    }
    Ok(())
}

/// Writes to stdout. A reader that has gone away is no failure of ours.
fn print(text: &str) -> ExitCode {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => fail(&format!("stdout: {error}")),
    }
}

fn fail(message: &str) -> ExitCode {
    // Nobody is left to tell when stderr is closed.
    let _ = writeln!(io::stderr(), "mcp-reconciler: {message}");
    ExitCode::FAILURE
}
