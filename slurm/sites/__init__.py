"""Sites that come with firetrain: `firetrain launch --site NAME`."""
