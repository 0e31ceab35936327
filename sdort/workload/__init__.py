"""What a component is fed with: cases and random inputs."""
