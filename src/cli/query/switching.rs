//! Flags of the commands about who rules: `preflight`.

use clap::Args;

use super::ViewArgs;

/// Exit codes of `preflight`, for its help.
const EXIT_CODES_OF_PREFLIGHT: &str = "Exit codes: 0 nothing is in the way; 1 warnings; 2 it cannot be switched; 4 usage; \
    5 an API server cannot be reached.";

/// Flags of `mooring preflight`.
#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES_OF_PREFLIGHT)]
pub struct PreflightArgs {
    /// Controllers that mooring is to take, as `mooring run --controllers` has them.
    #[arg(long, value_name = "LIST", default_value = "*", allow_hyphen_values = true)]
    pub controllers: String,

    /// Contexts of the kubeconfig to look at, one after the other.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', conflicts_with = "context")]
    pub contexts: Vec<String>,

    /// How and where.
    #[command(flatten)]
    pub view: ViewArgs,
}
