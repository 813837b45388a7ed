"""What tests share: typed commands, checkpoints to read, and callbacks for runs that are watched."""
