//! jsonrpsee, the JSON-RPC library of Rust, on one thread.

use jsonrpsee::RpcModule;
use jsonrpsee::server::{Server, ServerConfig};
use jsonrpsee::types::ErrorObjectOwned;

#[derive(serde::Deserialize)]
struct Sum {
    a: i64,
    b: i64,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let config = ServerConfig::builder().max_connections(2_000).build();
    let server = Server::builder().set_config(config).build(peers::address()).await?;
    let mut module = RpcModule::new(());
    module.register_method("sum", |params, _, _| {
        let Sum { a, b } = params.parse()?;
        Ok::<_, ErrorObjectOwned>(a + b)
    })?;
    server.start(module).stopped().await;
    Ok(())
}
