package daemon

import (
	"errors"
	"net"
	"strings"
	"testing"
)

// TestAddressOfAnotherProcess: the file is the same for all instances, so that the error has to say how each gets its own.
func TestAddressOfAnotherProcess(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	o := &opening{}
	o.source.Name = "orders"
	_, err = o.listen(l.Addr().String(), 0, &entrances{})
	if !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), `source "orders"`) || !strings.Contains(err.Error(), "address: ${ADDRESS:-"+l.Addr().String()+"}") {
		t.Errorf("error %v", err)
	}
}
