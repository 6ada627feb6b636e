"""What `forebay check` looks at: configuration, bus, engines, ports. Each look returns findings, changes nothing."""
