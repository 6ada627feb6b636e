"""The commands of `forebay`, one module each; deploy.cli imports them when they are called."""
